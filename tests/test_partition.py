"""The plan as a whole: what it decides for known networks, and what it refuses."""

from dataclasses import replace

import pytest

from stanza_compiler.cluster import DEVICES, Cluster
from stanza_compiler.errors import PlanError
from stanza_compiler.opgraph import Op, OpGraph, Rules
from stanza_compiler.passes.partition import partition
from stanza_compiler.plan import STRATEGIES, Allocation, Plan, Request, to_json
from tests.hand_graphs import alexnet, alexnet_64, vgg16

TEN = Cluster(nodes=10)


def _one_op() -> OpGraph:
    graph = alexnet()
    return replace(graph, name="one", ops=(graph.ops[0], graph.ops[1]), outputs=(graph.ops[1].name,))


def _asked(**wishes: object) -> Plan:
    return partition(alexnet(), Rules(), TEN, replace(Request(), **wishes))  # type: ignore[arg-type]


def test_vgg16_is_cut_before_its_linears() -> None:
    plan = partition(vgg16(), Rules(notes=("said before",)), TEN, Request(placement="dedicated", batch_size=64))
    assert plan.verdict == "separate"
    assert plan.allocation == Allocation(9, 1, "dedicated")
    conv, fc = plan.stages
    assert (conv.parameters, fc.parameters) == (14_714_688, 123_642_856)
    assert fc.parameter_bytes == 494_571_424
    assert plan.totals.forward_flops == 30_693_261_312 + 247_267_328
    assert [(tensor.name, tensor.bytes_per_sample) for tensor in plan.boundary] == [("flatten", 100_352)]
    # 58.9 of 553.4 MB stay: the note says why.
    assert plan.notes[0] == "said before"
    assert plan.notes[1].startswith("11% of the parameter bytes stay in CONV, the heaviest op is conv8 (9.4 MB)")


def test_every_strategy_is_priced_and_excluded_ones_are_null() -> None:
    plan = _asked()
    assert tuple(plan.predictions) == STRATEGIES
    assert [name for name in STRATEGIES if plan.predictions[name] is None] == ["sharded"]
    assert _asked(placement="dedicated").predictions["colocated"] is None
    assert '"break_even"' in to_json(plan)


def test_the_chosen_plan_is_at_least_as_fast_as_every_alternative() -> None:
    plan = _asked()
    chosen = plan.predictions[plan.allocation.placement]
    assert chosen
    assert 0 < len(plan.alternatives) <= 5
    assert all(other.samples_per_s <= chosen.samples_per_s * (1 + 1e-9) for other in plan.alternatives)
    assert all(other.why for other in plan.alternatives)


def test_below_break_even_separation_wins_and_above_it_loses() -> None:
    plan = _asked(strategy="separate", placement="dedicated", conv_workers=9, fc_workers=1)
    assert plan.break_even_bit_per_s
    fc_ops = plan.stage("fc").segments[0]
    for factor, separate_is_faster in ((0.99, True), (1.01, False)):
        cluster = replace(TEN, bandwidth_bit_per_s=factor * plan.break_even_bit_per_s)
        request = Request("separate", "dedicated", 9, 1, fc_ops=fc_ops)
        at = partition(alexnet(), Rules(), cluster, request).predictions
        separate, whole = at["dedicated"], at["data_parallel"]
        assert separate
        assert whole
        assert (separate.samples_per_s > whole.samples_per_s) == separate_is_faster


def test_a_fast_network_makes_vgg16_data_parallel() -> None:
    plan = partition(vgg16(), Rules(), replace(TEN, bandwidth_bit_per_s=1e12), Request())
    assert plan.verdict == "data-parallel"
    assert plan.allocation == Allocation(10, 0, "data-parallel")
    assert [stage.role for stage in plan.stages] == ["model"]
    assert plan.boundary == ()
    assert plan.stages[0].parameters == 138_357_544


def test_a_forced_strategy_is_obeyed() -> None:
    fast = replace(TEN, bandwidth_bit_per_s=1e12)
    plan = partition(vgg16(), Rules(), fast, Request(strategy="separate", placement="dedicated"))
    assert plan.verdict == "separate"
    assert plan.reason.startswith("separation was asked for and trains 0.")
    assert _asked(strategy="data-parallel").verdict == "data-parallel"


def test_the_users_cut_is_kept() -> None:
    plan = _asked(strategy="separate", cut_after="pool1")
    assert plan.stage("fc").segments[0][0] == "conv2"
    assert [tensor.name for tensor in plan.boundary] == ["pool1"]
    again = _asked(strategy="separate", fc_ops=plan.stage("fc").segments[0])
    assert again.stages == plan.stages


def test_a_size_runs_where_its_tensor_first_is() -> None:
    graph = alexnet()
    early = Op("early", "size", ("x",), None, is_size=True)
    late = Op("late", "size", ("linear1",), None, is_size=True)
    graph = replace(graph, ops=(early, *graph.ops, late))
    plan = partition(graph, Rules(), TEN, Request())
    assert plan.stage("conv").segments[0][0] == "early"
    assert plan.stage("fc").segments[0][-1] == "late"


def test_worker_counts_make_the_world() -> None:
    plan = _asked(conv_workers=5, fc_workers=1)
    whole = plan.predictions["data_parallel"]
    assert whole
    assert (whole.allocation.world_size, plan.cluster["nodes"], plan.cluster["device"]) == (6, 6, "v100")


def test_a_global_batch_is_every_strategys() -> None:
    plan = _asked(global_batch_size=100)
    assert {each.samples_per_step for each in plan.predictions.values() if each} == {100}
    assert plan.batch_size == -(-100 // plan.allocation.conv_workers)


def test_one_rank_trains_the_whole_model() -> None:
    plan = partition(alexnet(), Rules(), Cluster(nodes=1, device=DEVICES["cpu"]), Request(placement="dedicated"))
    assert plan.verdict == "data-parallel"
    assert plan.reason == "data-parallel, because 1 rank can't hold two roles apart"


def test_a_model_with_one_op_worth_placing_is_data_parallel_or_an_error() -> None:
    plan = partition(_one_op(), Rules(), TEN, Request())
    assert plan.reason == "data-parallel, because only one op worth placing"
    with pytest.raises(PlanError, match="one: only one op worth placing, nothing to separate; use --strategy data-par"):
        partition(_one_op(), Rules(), TEN, Request(strategy="separate"))


def test_rules_that_leave_one_side_empty_are_named() -> None:
    rules = Rules(together=(("conv0", "linear2"),))
    with pytest.raises(PlanError, match="the rules leave all 8 ops worth placing on one side, nothing to separate"):
        partition(alexnet(), rules, TEN, Request(strategy="separate"))


def test_unknown_strategies_are_refused() -> None:
    with pytest.raises(PlanError, match="no strategy 'best'; use auto"):
        _asked(strategy="best")
    with pytest.raises(PlanError, match="no placement 'best'; use dedicated"):
        _asked(placement="best")


def test_alexnet_at_64_pixels_is_cut_before_the_pooling_that_enlarges() -> None:
    """By hand: 256 values a sample leave the last max-pool, avgpool makes 9,216 of them."""
    small = alexnet_64()
    plan = partition(small, Rules(), Cluster(nodes=4), Request(strategy="separate", batch_size=4))
    assert [boundary.name for boundary in plan.boundary] == ["pool4"]
    assert plan.boundary[0].bytes_per_sample == 256 * 4


def test_compute_heavy_ops_go_to_fc_only_where_no_other_cut_is_legal() -> None:
    rules = Rules(fc_only=("conv4",))
    plan = partition(alexnet(), rules, TEN, Request(strategy="separate"))
    assert "conv4" in plan.stage("fc").segments[0]
    free = partition(alexnet(), Rules(), TEN, Request(strategy="separate"))
    assert not any(name.startswith("conv") for name in free.stage("fc").segments[0])


def test_where_samples_influence_each_other_one_host_sees_them_all() -> None:
    rules = Rules(single_host="the loss")
    plan = partition(alexnet(), rules, TEN, Request(strategy="separate"))
    assert (plan.allocation.fc_workers, plan.single_host) == (1, "the loss")
    assert "the loss: one FC host sees the whole batch" in plan.notes
    whole = partition(alexnet(), rules, TEN, Request(strategy="data-parallel"))
    assert any("its own part alone" in note for note in whole.notes)


def test_a_host_that_must_see_the_whole_batch_gets_nothing_that_cannot_be_joined() -> None:
    model = alexnet()
    ops = tuple(
        replace(op, output=replace(op.output, kind="per-rank")) if op.output and op.name == "flatten" else op
        for op in model.ops
    )
    for asked in (None, "flatten"):
        plan = partition(
            replace(model, ops=ops), Rules(single_host="the loss"), TEN, Request(strategy="separate", cut_after=asked)
        )
        assert plan.boundary
        assert all(crossing.kind == "batched" for crossing in plan.boundary)
