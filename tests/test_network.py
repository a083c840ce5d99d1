"""Rings, servers and host links, each worked out by hand."""

import pytest

from stanza_compiler.cluster import Cluster
from stanza_compiler.network import (
    Channel,
    Link,
    all_traffic,
    blocks,
    host_links,
    host_ranks,
    one_server,
    ring,
    sharded_servers,
)
from stanza_compiler.plan import Allocation
from tests.hand_graphs import value

# 1,000 bytes/s between nodes, 10,000 within one.
CLUSTER = Cluster(nodes=4, bandwidth_bit_per_s=8e3, latency_s=0.5, local_bandwidth_bit_per_s=8e4)
PAIRS = Cluster(nodes=2, gpus_per_node=2, bandwidth_bit_per_s=8e3, latency_s=0.5, local_bandwidth_bit_per_s=8e4)


def test_a_ring_of_four_sends_six_quarters_of_the_bytes() -> None:
    assert ring(range(4), CLUSTER) == Channel(s_per_byte=6 / 4 / 1000, latency_s=6 * 0.5)


def test_one_rank_reduces_nothing() -> None:
    assert ring([3], CLUSTER) == Channel(0.0, 0.0)


def test_a_ring_over_pairs_goes_within_nodes_then_between_them() -> None:
    channel = ring(range(4), PAIRS)
    assert channel.s_per_byte == pytest.approx(2 * 1 / 2 / 10_000 + 2 * 1 / 2 / 1000)
    assert channel.latency_s == (2 + 2) * 0.5


def test_a_ring_inside_one_node_uses_the_local_link_alone() -> None:
    assert ring([2, 3], PAIRS) == Channel(s_per_byte=1 / 10_000, latency_s=2 * 0.5)


def test_one_server_receives_from_all_workers() -> None:
    assert one_server(4, CLUSTER) == Channel(s_per_byte=3 / 1000, latency_s=0.5)


def test_a_server_hears_its_neighbour_over_the_local_link() -> None:
    assert one_server(4, PAIRS) == Channel(s_per_byte=2 / 1000, latency_s=0.5)


def test_sharded_servers_exchange_all_but_their_own_shard() -> None:
    assert sharded_servers(4, CLUSTER) == Channel(s_per_byte=3 / 4 / 1000, latency_s=0.5)


def test_two_ranks_of_a_node_share_its_link_to_the_other_shards() -> None:
    # Each of 2 ranks sends 2 of 4 shards to the other node.
    assert sharded_servers(4, PAIRS) == Channel(s_per_byte=2 * 2 / 4 / 1000, latency_s=0.5)


def test_the_first_blocks_are_one_larger() -> None:
    assert blocks(Allocation(8, 3, "dedicated")) == (range(3), range(3, 6), range(6, 8))


def test_more_hosts_than_conv_workers_leave_blocks_empty() -> None:
    assert blocks(Allocation(1, 2, "dedicated")) == (range(1), range(1, 1))


def test_hosts_follow_the_conv_workers_or_are_the_first_of_their_block() -> None:
    assert host_ranks(Allocation(8, 3, "dedicated")) == (8, 9, 10)
    assert host_ranks(Allocation(8, 3, "colocated")) == (0, 3, 6)


def test_a_dedicated_host_receives_its_block_and_one_copy_of_what_is_replicated() -> None:
    links = host_links(Allocation(3, 2, "dedicated"), (4, 4, 4), CLUSTER)
    assert links == (Link(8, 2, 1, 1 / 1000), Link(4, 1, 1, 1 / 1000))


def test_a_colocated_host_sends_itself_nothing() -> None:
    assert host_links(Allocation(3, 2, "colocated"), (4, 4, 4), CLUSTER) == (Link(4, 1, 0, 1 / 1000),)
    assert host_links(Allocation(3, 3, "colocated"), (4, 4, 4), CLUSTER) == ()


def test_a_neighbour_in_the_hosts_node_uses_the_local_link() -> None:
    links = host_links(Allocation(3, 1, "dedicated"), (4, 4, 4), PAIRS)
    assert links == (Link(8, 2, 1, 1 / 1000), Link(4, 1, 0, 1 / 10_000))


def test_two_hosts_in_a_node_share_its_link() -> None:
    assert host_links(Allocation(2, 2, "dedicated"), (4, 4), PAIRS) == (Link(8, 2, 2, 1 / 1000),)


def test_traffic_counts_every_host() -> None:
    assert all_traffic(Allocation(3, 2, "dedicated"), (4, 4, 3)) == Link(11, 3, 2, 0.0)


def test_a_link_carries_values_by_their_kind() -> None:
    link = Link(samples=8, ranks=2, copies=1, s_per_byte=0.001)
    assert link.payload_bytes(value("h", 40)) == 320
    assert link.payload_bytes(value("table", constant_bytes=700, kind="replicated")) == 700
    assert link.payload_bytes(value("lengths", constant_bytes=16, kind="per-rank")) == 32
