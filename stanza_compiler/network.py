"""Seconds that bytes need between ranks: rings, parameter servers, a host's links."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from stanza_compiler.cluster import Cluster
from stanza_compiler.opgraph import Value
from stanza_compiler.plan import MOST_BUCKET, Allocation

# Gradients are sent in buckets of at least so many bytes.
LEAST_BUCKET = 1 << 20

# How many times as long as its ring's latency a bucket's bytes take at least.
BUCKET_LATENCIES = 4


@dataclass(frozen=True, slots=True)
class Channel:
    """Sending P bytes takes `latency_s + P * s_per_byte`; sending none takes no time."""

    s_per_byte: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Link:
    """What one link carries between a host and its CONV ranks.

    The parts of ranks that hold `samples` samples together, one constant part for each of `ranks` ranks, and
    `copies` of what is equal on all ranks.
    """

    samples: int
    ranks: int
    copies: int
    s_per_byte: float

    def payload_bytes(self, value: Value, *, to_all: bool = False) -> float:
        """Bytes of a value on its way to the host, or from a host that made it `to_all` its ranks."""
        if value.kind == "replicated":
            return (self.ranks if to_all else self.copies) * value.bytes_at(0)
        return self.samples * value.bytes_per_sample + self.ranks * value.constant_bytes

    def carries(self, other: "Link") -> bool:
        """Whether this link is at least as busy as `other`, whatever crosses."""
        return (
            self.samples * self.s_per_byte >= other.samples * other.s_per_byte
            and self.ranks * self.s_per_byte >= other.ranks * other.s_per_byte
            and self.copies * self.s_per_byte >= other.copies * other.s_per_byte
        )


def ring(ranks: Iterable[int], cluster: Cluster) -> Channel:
    """Ring allreduce over `ranks`: 2(n-1)/n P/B + 2(n-1) latency (Patarasuk & Yuan, JPDC 69(2), 2009).

    With several ranks in a node the sum is taken within nodes, then between them, then spread within: both
    rings are paid one after the other. The cluster's latency stands for both kinds of link.
    """
    per_node = _per_node(ranks, cluster)
    n_nodes, n_local = len(per_node), max(per_node.values())
    between, within = 2 * (n_nodes - 1), 2 * (n_local - 1)
    s_per_byte = between / n_nodes * _node_s_per_byte(cluster) + within / n_local * _local_s_per_byte(cluster)
    return Channel(s_per_byte, (between + within) * cluster.latency_s)


def bucket_bytes(channel: Channel) -> int:
    """The bucket in which gradients travel over a ring: as small as its latency allows, because it waits to be full.

    >>> bucket_bytes(Channel(s_per_byte=1e-9, latency_s=1e-3)) / 1e6
    4.0
    """
    latency_bytes = channel.latency_s / channel.s_per_byte if channel.s_per_byte else 0.0
    return round(min(max(LEAST_BUCKET, BUCKET_LATENCIES * latency_bytes), MOST_BUCKET))


def one_server(world_size: int, cluster: Cluster) -> Channel:
    """World size - 1 workers to the server on the last rank, or back: all cross the server's link."""
    per_node = _per_node(range(world_size), cluster)
    local = per_node[(world_size - 1) // cluster.gpus_per_node] - 1
    remote = world_size - 1 - local
    return Channel(max(remote * _node_s_per_byte(cluster), local * _local_s_per_byte(cluster)), cluster.latency_s)


def sharded_servers(world_size: int, cluster: Cluster) -> Channel:
    """Every rank to every other rank's shard of 1 / world size, or back."""
    ranks = max(_per_node(range(world_size), cluster).values())
    between = ranks * (world_size - ranks) / world_size * _node_s_per_byte(cluster)
    within = (ranks - 1) / world_size * _local_s_per_byte(cluster)
    return Channel(max(between, within), cluster.latency_s)


def blocks(allocation: Allocation) -> tuple[range, ...]:
    """The CONV ranks of each FC host: contiguous, the first n_c mod n_f blocks one larger."""
    size, larger = divmod(allocation.conv_workers, allocation.fc_workers)
    starts = [host * size + min(host, larger) for host in range(allocation.fc_workers + 1)]
    return tuple(range(start, stop) for start, stop in pairwise(starts))


def host_ranks(allocation: Allocation) -> tuple[int, ...]:
    """Dedicated host j is rank n_c + j, a colocated host its block's first rank."""
    if allocation.placement == "dedicated":
        return tuple(range(allocation.conv_workers, allocation.world_size))
    return tuple(block.start for block in blocks(allocation))


def host_links(allocation: Allocation, parts: tuple[int, ...], cluster: Cluster) -> tuple[Link, ...]:
    """Each distinct load of a node link that hosts share, or of one host's local link; `parts` in samples."""
    remote: dict[int, Link] = {}
    local: list[Link] = []
    for block, host in zip(blocks(allocation), host_ranks(allocation), strict=True):
        node = host // cluster.gpus_per_node
        near = [rank for rank in block if rank // cluster.gpus_per_node == node]
        far = [rank for rank in block if rank // cluster.gpus_per_node != node]
        local.append(_load(near, block, host, parts, _local_s_per_byte(cluster)))
        load = _load(far, block, host, parts, _node_s_per_byte(cluster))
        remote[node] = _sum(remote[node], load) if node in remote else load
    return tuple(dict.fromkeys(link for link in (*remote.values(), *local) if link.ranks))


def all_traffic(allocation: Allocation, parts: tuple[int, ...]) -> Link:
    """What all hosts receive together, inside nodes too; it is no link, so a byte takes no time."""
    total = Link(0, 0, 0, 0.0)
    for block, host in zip(blocks(allocation), host_ranks(allocation), strict=True):
        total = _sum(total, _load(block, block, host, parts, 0.0))
    return total


def sharded_copies(allocation: Allocation, parts: tuple[int, ...]) -> int:
    """Samples that the CONV ranks send when every host gets all parts, one copy for each host but a rank itself."""
    hosts = set(host_ranks(allocation))
    return sum(part * (len(hosts) - (rank in hosts)) for rank, part in enumerate(parts))


def sharded_s_per_byte(allocation: Allocation, parts: tuple[int, ...], cluster: Cluster) -> float:
    """Seconds of the busiest link, out or in, when all parts go to every host, or back, one byte a sample.

    A node's link carries what its ranks send to hosts in other nodes, and the other way what its hosts get from
    there; a rank's local link the same within the node.
    """
    hosts = host_ranks(allocation)
    in_node = Counter(host // cluster.gpus_per_node for host in hosts)
    samples = Counter[int]()
    for rank, part in enumerate(parts):
        samples[rank // cluster.gpus_per_node] += part
    everything, node_s, local_s = sum(parts), _node_s_per_byte(cluster), _local_s_per_byte(cluster)
    loads = [
        max(own * (len(hosts) - in_node[node]), in_node[node] * (everything - own)) * node_s
        for node, own in samples.items()
    ]
    for rank, part in enumerate(parts):
        node, is_host = rank // cluster.gpus_per_node, rank in hosts
        loads.append(max(part * (in_node[node] - is_host), is_host * (samples[node] - part)) * local_s)
    return max(loads)


def host_exchange(allocation: Allocation, cluster: Cluster) -> Channel:
    """Every host's share, 1 / hosts of the bytes, to each other host directly."""
    hosts = host_ranks(allocation)
    near = max(_per_node(hosts, cluster).values())
    far = max(count * (len(hosts) - count) for count in _per_node(hosts, cluster).values())
    s_per_byte = max(far * _node_s_per_byte(cluster), (near - 1) * _local_s_per_byte(cluster)) / len(hosts)
    return Channel(s_per_byte, cluster.latency_s)


def _load(ranks: Iterable[int], block: range, host: int, parts: tuple[int, ...], s_per_byte: float) -> Link:
    """What `ranks` of a block send to its host, which sends itself nothing."""
    senders = [rank for rank in ranks if rank != host]
    return Link(sum(parts[rank] for rank in senders), len(senders), int(block.start in senders), s_per_byte)


def _sum(one: Link, other: Link) -> Link:
    return Link(one.samples + other.samples, one.ranks + other.ranks, one.copies + other.copies, one.s_per_byte)


def _per_node(ranks: Iterable[int], cluster: Cluster) -> Counter[int]:
    return Counter(rank // cluster.gpus_per_node for rank in ranks)


def _node_s_per_byte(cluster: Cluster) -> float:
    return 8 / cluster.bandwidth_bit_per_s


def _local_s_per_byte(cluster: Cluster) -> float:
    return 8 / cluster.local_bandwidth_bit_per_s
