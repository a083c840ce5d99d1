"""Plans with FC's part in front of CONV's, against every one of them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stanza_compiler.cluster import Cluster, Device
from stanza_compiler.cost_model import Batch, price_cut, separate_costs
from stanza_compiler.errors import PlanError
from stanza_compiler.front import front_of, front_space
from stanza_compiler.opgraph import Op, OpGraph, Rules
from stanza_compiler.passes.partition import partition
from stanza_compiler.plan import Allocation, Request
from stanza_compiler.search import search_front
from tests.hand_graphs import legal_fronts, parameter, random_models, value

CLUSTER = Cluster(
    nodes=4, gpus_per_node=1, bandwidth_bit_per_s=1e9, latency_s=50e-6, device=Device("toy", 1e12, 1e11, 10e-6)
)


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(random_models(), st.sampled_from([Batch(3), Batch(7, is_global=True)]), st.sampled_from([1e8, 1e10]))
def test_the_search_finds_the_cheapest_of_all_plans_with_fc_in_front(
    model: tuple[OpGraph, Rules], batch: Batch, bandwidth: float
) -> None:
    graph, rules = model[0], replace(model[1], single_host="")
    cluster = replace(CLUSTER, bandwidth_bit_per_s=bandwidth)
    choices = [
        separate_costs(graph, allocation, cluster, batch)
        for allocation in (Allocation(3, 1, "dedicated"), Allocation(2, 2, "dedicated"), Allocation(4, 2, "colocated"))
    ]
    plans = legal_fronts(graph, rules)
    for costs in choices:
        found = search_front([costs], front_space(graph, rules), ())
        assert bool(found) == bool(plans)
        if plans:
            least = min(price_cut(costs, front | back, front).iteration_s for front, back in plans)
            assert found[0].prediction.iteration_s == pytest.approx(least, rel=1e-9)
            assert (found[0].front, found[0].fc_ops - found[0].front) in plans


def language_model(vocabulary: int, width: int, *, is_tied: bool) -> OpGraph:
    """A table, two layers of `width` x `width` on 16 tokens, and a head over the vocabulary."""
    tokens, sizes = 16, {"table": vocabulary * width, "head": vocabulary * width}
    ids = value("ids", 8 * tokens, requires_grad=False)
    hidden = 4 * tokens * width

    def layer(name: str, source: str, output_bytes: int, elements: int, flops: int, weight: str) -> Op:
        return Op(
            name, name, (source,), value(name, output_bytes), parameters=(weight,), forward_flops=flops,
            backward_flops=2 * flops, memory_bytes_per_sample=2 * output_bytes, constant_memory_bytes=4 * elements,
        )  # fmt: skip

    head = "table.weight" if is_tied else "head.weight"
    body = 2 * tokens * width * width
    ops = (
        layer("table", "ids", hidden, 0, 0, "table.weight"),
        layer("body0", "table", hidden, width * width, 40 * body, "body0.weight"),
        layer("body1", "body0", hidden, width * width, 40 * body, "body1.weight"),
        layer("head", "body1", 4 * tokens * vocabulary, sizes["head"], 2 * tokens * width * vocabulary, head),
    )
    weights = [parameter("table.weight", sizes["table"])]
    weights += [parameter(f"body{number}.weight", width * width) for number in (0, 1)]
    weights += [] if is_tied else [parameter("head.weight", sizes["head"])]
    return OpGraph("lm", 8, (ids,), ops, ("head",), tuple(weights), target_bytes=8 * tokens)


@pytest.mark.parametrize("is_tied", [True, False])
def test_tables_in_front_and_a_head_behind_are_separated_on_a_slow_network(is_tied: bool) -> None:
    graph = language_model(20_000, 64, is_tied=is_tied)
    plan = partition(graph, Rules(), replace(CLUSTER, bandwidth_bit_per_s=1e8), Request())
    assert plan.verdict == "separate"
    assert [(role, names) for role, names in plan.sequence] == [
        ("fc", ("table",)), ("conv", ("body0", "body1")), ("fc", ("head",))
    ]  # fmt: skip
    assert [(item.name, item.from_segment, item.to_segment) for item in plan.boundary] == [
        ("ids", 1, 0), ("table", 0, 1), ("body1", 1, 2)
    ]  # fmt: skip
    assert [stage.role for stage in plan.stages] == ["fc", "conv"]
    # By hand: 4 nodes, one link of 1e8 bit/s; ids and targets up, then hidden states up, gradients and states down.
    link = 8 / 1e8
    hosted = plan.predictions["colocated"]
    assert hosted is not None
    samples = 8 * (4 - 1) if hosted.allocation.fc_workers == 1 else None
    if samples:
        up = samples * (8 * 16 + 4 * 16 * 64 + 8 * 16 + 4 * 16 * 64) * link + 3 * 50e-6
        assert hosted.terms["up_s"] == pytest.approx(up)
        assert hosted.terms["down_s"] == pytest.approx(samples * 2 * 4 * 16 * 64 * link + 2 * 50e-6)


def test_a_head_whose_computation_would_move_to_one_host_stays() -> None:
    graph = language_model(20_000, 64, is_tied=True)
    heavy = replace(
        graph,
        ops=tuple(
            replace(op, forward_flops=10**12, backward_flops=2 * 10**12) if op.name == "head" else op
            for op in graph.ops
        ),
    )
    assert partition(heavy, Rules(), CLUSTER, Request()).verdict == "data-parallel"


def test_the_ops_in_front_are_those_that_conv_comes_after() -> None:
    graph = language_model(100, 8, is_tied=False)
    cuts = front_space(graph, Rules()).cuts
    assert front_of(graph, cuts, frozenset({"table", "head"})) == {"table"}
    assert front_of(graph, cuts, frozenset({"head"})) == frozenset()
    together = front_space(graph, Rules(together=(("body1", "head"),))).cuts
    assert front_of(graph, together, frozenset({"body1", "head"})) == frozenset()


def test_what_the_front_gives_to_the_part_behind_is_listed_and_costs_nothing() -> None:
    graph = language_model(20_000, 64, is_tied=True)
    *others, head = graph.ops
    mixed = replace(graph, ops=(*others, replace(head, inputs=("body1", "table"))))
    slow = replace(CLUSTER, bandwidth_bit_per_s=1e8)
    plans = [partition(each, Rules(), slow, Request()) for each in (graph, mixed)]
    crossing = [[(item.name, item.from_segment, item.to_segment) for item in plan.boundary] for plan in plans]
    assert crossing[1] == [*crossing[0][:2], ("table", 0, 2), *crossing[0][2:]]
    assert plans[0].predictions["colocated"] == plans[1].predictions["colocated"]


def test_a_loss_that_must_see_the_whole_batch_is_not_left_to_conv() -> None:
    graph = language_model(20_000, 64, is_tied=False)
    alone = Rules(conv_only=("body0", "body1", "head"))
    slow = replace(CLUSTER, bandwidth_bit_per_s=1e8)
    assert [role for role, _ in partition(graph, alone, slow, Request()).sequence] == ["fc", "conv"]
    whole = replace(alone, single_host="the loss couples samples")
    assert partition(graph, whole, slow, Request()).verdict == "data-parallel"
    asked = Request(strategy="separate", placement="colocated", conv_workers=4, fc_workers=1, fc_ops=("table",))
    with pytest.raises(PlanError, match="nothing to separate"):
        partition(graph, whole, slow, asked)
    assert front_space(graph, alone).is_legal(front=0b1, back=0)
    assert not front_space(graph, whole).is_legal(front=0b1, back=0)
