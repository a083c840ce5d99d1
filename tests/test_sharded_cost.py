"""FC parts that hosts share, priced by hand, and which ones they can share."""

from dataclasses import replace

import pytest

from stanza_compiler.cluster import Cluster, Device
from stanza_compiler.cost_model import Batch, price_cut
from stanza_compiler.cuts import cut_space
from stanza_compiler.errors import PlanError
from stanza_compiler.network import Channel, host_exchange, sharded_copies, sharded_s_per_byte
from stanza_compiler.opgraph import Op, OpGraph, Rules, Shardable, Value
from stanza_compiler.passes.partition import partition
from stanza_compiler.plan import TERMS, Allocation, Request
from stanza_compiler.sharded_cost import ShardedPrices
from stanza_compiler.sharding import shardable_cuts, sharding_of
from tests.hand_graphs import parameter, value

# 1,000 FLOP/s, an optimiser that takes 0.5 ms a byte, 1,000 bytes/s between nodes and 10,000 within one.
TOY = Device("toy", flops_per_s=1e3, memory_bytes_per_s=1e4, overhead_s=0.0)
CLUSTER = Cluster(4, 1, bandwidth_bit_per_s=8e3, latency_s=0.5, local_bandwidth_bit_per_s=8e4, device=TOY)
PAIRS = replace(CLUSTER, nodes=2, gpus_per_node=2)


def columns(name: str, width: int) -> Value:
    return Value(name, (4, width), "float32", "batched", 0, 4 * width, 0, True)


GRAPH = OpGraph(
    "three",
    4,
    (value("x", 100, requires_grad=False),),
    (
        Op("body", "Conv2d", ("x",), columns("body", 10), "m.py:5", ("w",), forward_flops=10, backward_flops=20),
        Op("hidden", "Linear", ("body",), columns("hidden", 6), "", ("u",), forward_flops=12, backward_flops=24),
        Op("act", "ReLU", ("hidden",), columns("act", 6), memory_bytes_per_sample=48),
        Op("head", "Linear", ("act",), columns("head", 4), "", ("v",), forward_flops=8, backward_flops=16),
    ),
    ("head",),
    (parameter("w", 250), parameter("u", 60), parameter("v", 24)),
    target_bytes=10,
)
SHARDABLE = Shardable(frozenset({"hidden", "head"}), frozenset({"act"}), frozenset())
CHAIN = frozenset({"hidden", "act", "head"})


def test_two_hosts_that_share_two_layers_are_as_by_hand() -> None:
    prediction = ShardedPrices(GRAPH, SHARDABLE, CLUSTER, Batch(4), 4).price(CHAIN, 2)
    # The 6 columns between the layers, 24 bytes a sample, and 3 floats a sample from either host: 384 bytes each.
    exchange_s = 0.5 + 384 / 2 / 1000
    assert tuple(prediction.terms) == TERMS
    assert prediction.terms == pytest.approx(
        {
            "conv_forward_s": 4 * 10 / 1000,
            "up_s": 0.5 + 12 * (40 + 10) / 1000,  # a host gets three other ranks' parts
            "fc_forward_s": 16 * (12 / 2 + 8 / 2) / 1000 + 16 * 48 / 2 / 1e4 + 2 * exchange_s,
            # Of the layers half: the products for their own gradients are computed while CONV's sums travel.
            "fc_backward_s": 16 * (12 / 2 + 8 / 2) / 1000 + 2 * 16 * 48 / 2 / 1e4 + exchange_s,
            "down_s": 0.5 + 12 * 40 / 1000,
            "conv_backward_s": 4 * 20 / 1000,
            "conv_allreduce_exposed_s": 6 * 0.5 + 6 / 4 * 1000 / 1000,
            "fc_exposed_s": 0.0,
            "optimizer_s": (1000 + (240 + 96) / 2) * 5 / 1e4,
        }
    )
    # CONV's ring, 24 parts of samples to hosts and back, the columns twice, the loss.
    assert prediction.bytes_per_step == 2 * 3 * 1000 + 24 * (50 + 40) + 2 * 384 + 384
    assert prediction.allocation == Allocation(4, 2, "sharded")


def test_late_gradients_count_as_far_as_they_outlast_the_sums_of_conv() -> None:
    heavy = _with("head", forward_flops=9_000, backward_flops=18_000)
    prediction = ShardedPrices(heavy, SHARDABLE, CLUSTER, Batch(4), 4).price(CHAIN, 2)
    # The products for the weights of both layers, on half of their columns; CONV's ring as above.
    late_s, ring_s = 16 * (12 + 9_000) / 2 / 1000, 6 * 0.5 + 6 / 4 * 1000 / 1000
    assert prediction.terms["fc_exposed_s"] == pytest.approx(late_s - ring_s)


def test_the_busiest_host_has_the_larger_share_of_columns() -> None:
    prediction = ShardedPrices(GRAPH, SHARDABLE, CLUSTER, Batch(4), 4).price(frozenset({"head"}), 3)
    exchange_s = 0.5 + 3 * 3 * 4 * 16 * 2 / 3 / 1000
    assert prediction.terms["fc_forward_s"] == pytest.approx(16 * 8 * 2 / 4 / 1000 + exchange_s)


def test_a_loss_that_takes_all_scores_is_priced_with_them() -> None:
    shardable = replace(SHARDABLE, takes_all="softmax")
    prediction = ShardedPrices(GRAPH, shardable, CLUSTER, Batch(4), 4).price(frozenset({"head"}), 2)
    assert prediction.terms["fc_forward_s"] == pytest.approx(16 * 8 / 2 / 1000 + 0.5 + 16 * 16 / 2 / 1000)


def test_one_host_costs_what_a_colocated_one_costs() -> None:
    prices = ShardedPrices(GRAPH, SHARDABLE, CLUSTER, Batch(4), 4)
    alone, colocated = prices.price(CHAIN, 1), price_cut(prices.base, CHAIN)
    assert alone.terms == pytest.approx(colocated.terms)
    assert alone.bytes_per_step == colocated.bytes_per_step


def test_links_carry_parts_to_every_host() -> None:
    parts = (5, 4, 4, 4)
    four, two = Allocation(4, 4, "sharded"), Allocation(4, 2, "sharded")
    assert sharded_copies(four, parts) == 3 * 17
    assert sharded_copies(two, parts) == 5 + 2 * 4 + 4 + 2 * 4
    assert sharded_s_per_byte(four, parts, CLUSTER) == pytest.approx(
        3 * 5 / 1000
    )  # the largest part leaves three times
    assert sharded_s_per_byte(two, parts, CLUSTER) == pytest.approx((17 - 4) / 1000)  # and a host gets all but its own
    # Two nodes of two: either host, ranks 0 and 2, gets the other node's 8 or 9; rank 1 sends 4 to rank 2.
    assert sharded_s_per_byte(two, parts, PAIRS) == pytest.approx(9 / 1000)
    # With four hosts 9 samples leave a node for two hosts.
    assert sharded_s_per_byte(four, parts, PAIRS) == pytest.approx(2 * 9 / 1000)


def test_hosts_exchange_directly() -> None:
    assert host_exchange(Allocation(4, 4, "sharded"), CLUSTER) == Channel(3 / 4 / 1000, 0.5)
    assert host_exchange(Allocation(4, 4, "sharded"), PAIRS) == Channel(2 * 2 / 4 / 1000, 0.5)
    assert host_exchange(Allocation(2, 2, "sharded"), replace(PAIRS, nodes=1)) == Channel(1 / 2 / 10_000, 0.5)


def test_a_chain_can_be_shared_and_its_widths_are_told() -> None:
    assert sharding_of(GRAPH, SHARDABLE, CHAIN).columns == {"hidden": 6, "head": 4}
    assert sharding_of(GRAPH, SHARDABLE, CHAIN).why_not == ""


def test_every_chain_at_the_end_is_a_cut() -> None:
    cuts = cut_space(GRAPH, Rules())
    assert [cuts.ops(groups) for groups in shardable_cuts(GRAPH, SHARDABLE, cuts)] == [
        frozenset({"head"}),
        frozenset({"act", "head"}),
        CHAIN,
    ]


def _with(name: str, **changes: object) -> OpGraph:
    ops = tuple(replace(op, **changes) if op.name == name else op for op in GRAPH.ops)  # type: ignore[arg-type]
    return replace(GRAPH, ops=ops)


@pytest.mark.parametrize(
    ("graph", "shardable", "fc_ops", "why"),
    [
        (GRAPH, SHARDABLE, CHAIN | {"body"}, "body (Conv2d, m.py:5) is no Linear layer or pointwise op"),
        (GRAPH, replace(SHARDABLE, why_not="because"), CHAIN, "because"),
        (GRAPH, replace(SHARDABLE, pointwise=frozenset(), stateless=frozenset({"act"})), CHAIN, "act (ReLU) is no Lin"),
        (GRAPH, replace(SHARDABLE, linears=frozenset({"hidden"})), frozenset({"head"}), "head (Linear) is no Linear"),
        (_with("head", inputs=("act", "hidden")), SHARDABLE, CHAIN, "head (Linear) reads act, hidden, and"),
        (_with("head", inputs=("act", "body")), SHARDABLE, CHAIN, "head (Linear) reads act, body, and"),
        (_with("head", inputs=("act", "x")), SHARDABLE, CHAIN, "it takes x, body, and hosts share a chain"),
        (replace(GRAPH, outputs=("head", "act")), SHARDABLE, CHAIN, "the model's output is not that of its last op"),
        (_with("body", output=value("body", 40, kind="per-rank")), SHARDABLE, CHAIN, "what it takes, body, has no"),
    ],
)
def test_what_is_no_chain_is_named(graph: OpGraph, shardable: Shardable, fc_ops: frozenset[str], why: str) -> None:
    sharding = sharding_of(graph, shardable, fc_ops)
    assert sharding.why_not.startswith(why)
    assert sharding.columns == {}


def test_what_keeps_no_state_may_stand_in_front() -> None:
    shardable = replace(SHARDABLE, linears=frozenset({"head"}), pointwise=frozenset(), stateless=frozenset({"act"}))
    assert sharding_of(GRAPH, shardable, frozenset({"act", "head"})).columns == {"head": 4}


# Sums of 16 times as much computation make it worth sharing; with one host it is a bottleneck.
BIG = replace(
    GRAPH,
    ops=tuple(
        replace(op, forward_flops=1000 * op.forward_flops, backward_flops=1000 * op.backward_flops) for op in GRAPH.ops
    ),
)
RULES = Rules(shardable=SHARDABLE)


def test_the_planner_chooses_sharded_hosts_where_they_are_fastest() -> None:
    plan = partition(BIG, RULES, CLUSTER, Request(strategy="separate", batch_size=4))
    sharded = plan.predictions["sharded"]
    assert plan.allocation == Allocation(4, 4, "sharded")
    assert sharded
    # Brute force over the cuts and numbers of hosts.
    prices = ShardedPrices(BIG, SHARDABLE, CLUSTER, Batch(4), 4)
    every = [
        prices.price(fc_ops, hosts).iteration_s
        for fc_ops in (frozenset({"head"}), frozenset({"act", "head"}), CHAIN)
        for hosts in (2, 3, 4)
    ]
    others = [plan.predictions[name] for name in ("dedicated", "colocated")]
    assert sharded.iteration_s == min(every)
    assert all(other and other.iteration_s / other.samples_per_step > sharded.iteration_s / 16 for other in others)
    assert plan.sharding.columns.keys() <= {"hidden", "head"}
    assert "fc sharded over 4 of them" in str(plan.allocation)


def test_worker_counts_and_cuts_asked_for_are_kept() -> None:
    plan = partition(BIG, RULES, CLUSTER, Request(placement="sharded", fc_workers=2, cut_after="act", batch_size=4))
    assert plan.predictions["sharded"]
    assert plan.predictions["sharded"].allocation == Allocation(4, 2, "sharded")
    assert plan.predictions["colocated"] is None
    asked = Request(strategy="separate", placement="sharded", fc_workers=2, cut_after="act", batch_size=4)
    plan = partition(BIG, RULES, CLUSTER, asked)
    assert plan.stage("fc").segments == (("head",),)
    assert plan.sharding.columns == {"head": 4}


@pytest.mark.parametrize(
    ("rules", "request_", "message"),
    [
        (Rules(), Request(placement="sharded"), "sharded: head .Linear. is no Linear layer .*; use --placement coloc"),
        (RULES, Request(placement="sharded", cut_after="x"), "no op or module 'x'|leaves CONV without work"),
        (RULES, Request(placement="sharded", fc_workers=5), "do not fit 4 ranks sharded"),
        (RULES, Request(placement="sharded", fc_workers=4, conv_workers=3), "do not fit 3 ranks sharded"),
    ],
)
def test_what_cannot_be_shared_is_refused_when_asked_for(rules: Rules, request_: Request, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        partition(BIG, rules, CLUSTER, request_)


def test_more_hosts_than_columns_are_refused() -> None:
    with pytest.raises(PlanError, match="5 hosts for a layer of 4 columns; pass fewer --fc-workers"):
        partition(BIG, RULES, replace(CLUSTER, nodes=6), Request(placement="sharded", fc_workers=5))


def test_samples_that_must_be_seen_together_are_by_every_sharded_host() -> None:
    rules = replace(RULES, single_host="the loss compares samples")
    plan = partition(BIG, rules, CLUSTER, Request(strategy="separate", placement="sharded", batch_size=4))
    assert plan.allocation.fc_workers == 4
    assert "the loss compares samples: every FC host sees the whole batch" in plan.notes
