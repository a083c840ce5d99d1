"""Plans that part the users of one parameter, because the user asks for it."""

from dataclasses import replace

import pytest

from stanza_compiler.cluster import Cluster, Device
from stanza_compiler.opgraph import OpGraph, Rules
from stanza_compiler.passes.partition import partition
from stanza_compiler.plan import Plan, Request
from stanza_compiler.ties import parted, ties
from tests.test_front import language_model

CLUSTER = Cluster(
    nodes=4, gpus_per_node=1, bandwidth_bit_per_s=1e9, latency_s=50e-6, device=Device("toy", 1e12, 1e11, 10e-6)
)
GRAPH = language_model(20_000, 64, is_tied=True)
TABLE_BYTES = 20_000 * 64 * 4


def asked(graph: OpGraph = GRAPH, **wishes: object) -> Plan:
    request = Request(strategy="separate", placement="colocated", conv_workers=4, fc_workers=1)
    return partition(graph, Rules(), CLUSTER, replace(request, **wishes))  # type: ignore[arg-type]


def test_a_tie_is_a_parameter_of_several_ops() -> None:
    (tie,) = ties(GRAPH)
    assert (tie.parameter.name, tie.users) == ("table.weight", ("table", "head"))
    assert tie.gradient.dense_bytes == TABLE_BYTES
    assert parted([tie], frozenset({"head"})) == (tie,)
    assert parted([tie], frozenset({"head", "table"})) == ()


@pytest.mark.parametrize(
    ("fc_ops", "roles"),
    [
        (("head",), ["conv", "fc"]),
        (("table",), ["fc", "conv"]),
        (("body1", "head"), ["conv", "fc"]),
    ],
)
def test_an_edited_plan_may_part_a_tie(fc_ops: tuple[str, ...], roles: list[str]) -> None:
    plan = asked(fc_ops=fc_ops)
    assert [role for role, _ in plan.sequence] == roles
    assert plan.stage("fc").segments == (fc_ops,)
    # Both roles hold the table, the model has it once.
    assert all(stage.parameter_bytes >= TABLE_BYTES for stage in plan.stages)
    assert plan.totals.parameter_bytes == TABLE_BYTES + 2 * 64 * 64 * 4


def test_with_fc_at_both_ends_conv_may_share_a_parameter_with_either() -> None:
    first, body, *others = GRAPH.ops
    graph = replace(GRAPH, ops=(first, replace(body, parameters=("body0.weight", "table.weight")), *others))
    plan = asked(graph, fc_ops=("table", "head"))
    assert [role for role, _ in plan.sequence] == ["fc", "conv", "fc"]
    assert any("CONV uses it in body0, FC in table, head; its gradient" in note for note in plan.notes)


def test_cut_after_parts_a_tie_where_an_op_behind_the_cut_has_it() -> None:
    assert asked(cut_after="body1").stage("fc").segments == (("head",),)


def test_the_note_names_the_parameter_its_users_and_what_it_costs() -> None:
    first, *bodies, head = GRAPH.ops
    graph = replace(GRAPH, ops=(replace(first, source="lm.py:9"), *bodies, replace(head, source="lm.py:17")))
    (note,) = [note for note in asked(graph, fc_ops=("head",)).notes if "both roles" in note]
    # By hand: a ring of 4 ranks, 6/4 of 5.12 MB at 1e9 bit/s and 6 times 50 us; 6 times 5.12 MB are sent.
    assert note == (
        "table.weight (5.12 MB) is held by both roles, as the plan asks: CONV uses it in table (lm.py:9), "
        "FC in head (lm.py:17); its gradient is summed over all 4 ranks, 30.72 MB and 61.74 ms a step"
    )


def test_parameters_of_one_layer_share_a_note() -> None:
    first, *others, head = GRAPH.ops
    both = tuple(replace(op, parameters=("table.weight", "body0.weight")) for op in (first, head))
    graph = replace(GRAPH, ops=(both[0], *(replace(op, parameters=()) for op in others), both[1]))
    (note,) = [note for note in asked(graph, fc_ops=("head",)).notes if "both roles" in note]
    assert note.startswith("table.weight, body0.weight (5.136 MB) is held")


def test_a_frozen_parameter_of_both_roles_is_told_and_costs_nothing() -> None:
    frozen = tuple(replace(each, trainable=each.name != "table.weight") for each in GRAPH.parameters)
    plan = asked(replace(GRAPH, parameters=frozen), fc_ops=("head",))
    (note,) = [note for note in plan.notes if "both roles" in note]
    assert note.endswith("; it is frozen, so that nothing of it is sent")


def test_of_its_own_accord_the_planner_parts_no_tie() -> None:
    for bandwidth in (1e7, 1e9, 1e11):
        plan = partition(GRAPH, Rules(), replace(CLUSTER, bandwidth_bit_per_s=bandwidth), Request())
        assert not any("both roles" in note for note in plan.notes)
        for stage in plan.stages:
            names = {name for segment in stage.segments for name in segment}
            assert len(names & {"table", "head"}) in (0, 2)
