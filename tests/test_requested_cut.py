"""--cut-after and edited plans: what they mean, and why they are refused."""

from dataclasses import replace

import pytest

from stanza_compiler.cuts import cut_space
from stanza_compiler.errors import PlanError
from stanza_compiler.opgraph import Op, OpGraph, Rules
from stanza_compiler.plan import Request
from stanza_compiler.requested_cut import requested_cut
from tests.hand_graphs import parameter, value


def _op(name: str, *inputs: str) -> Op:
    return Op(name, "Linear", inputs, value(name, 4), parameters=(f"{name}.weight",))


# The side branch is run between the trunk's two halves, the late branch after them.
NAMES = ("trunk.0", "side", "trunk.1", "late", "size", "head.0", "head.1")
GRAPH = OpGraph(
    "towers",
    1,
    (value("x", 4), value("t", 4)),
    (
        _op("trunk.0", "x"),
        _op("side", "t"),
        _op("trunk.1", "trunk.0"),
        _op("late", "t"),
        Op("size", "size", ("trunk.1",), None, is_size=True),
        _op("head.0", "trunk.1", "side", "late", "size"),
        _op("head.1", "head.0"),
    ),
    ("head.1",),
    tuple(parameter(f"{name}.weight", 1) for name in NAMES if name != "size"),
)


def _fc_ops(request: Request, rules: Rules | None = None) -> set[str]:
    rules = rules or Rules()
    cuts = cut_space(GRAPH, rules)
    groups = requested_cut(GRAPH, rules, cuts, request)
    assert groups is not None
    return set(cuts.ops(groups))


def test_no_wish_is_no_cut() -> None:
    assert requested_cut(GRAPH, Rules(), cut_space(GRAPH, Rules()), Request()) is None


def test_a_cut_takes_along_earlier_branches_but_not_later_ones() -> None:
    assert _fc_ops(Request(cut_after="trunk.1")) == {"late", "head.0", "head.1"}


def test_a_module_stands_for_its_last_op() -> None:
    assert _fc_ops(Request(cut_after="trunk")) == _fc_ops(Request(cut_after="trunk.1"))


def test_a_branch_that_must_be_in_fc_stays_there() -> None:
    assert _fc_ops(Request(cut_after="trunk.1"), Rules(fc_only=("side",))) == {"side", "late", "head.0", "head.1"}


def _tied(*pairs: tuple[str, str]) -> OpGraph:
    """GRAPH with the second op of each pair using the first one's weight as well."""
    weights = {other: f"{one}.weight" for one, other in pairs}
    ops = tuple(
        replace(op, parameters=(*op.parameters, weights[op.name])) if op.name in weights else op for op in GRAPH.ops
    )
    return replace(GRAPH, ops=ops)


@pytest.mark.parametrize(
    ("pairs", "last", "fc_ops"),
    [
        ([("trunk.0", "head.0")], "trunk.1", {"late", "head.0", "head.1"}),  # head.0 needs trunk.1: the tie is parted
        ([("trunk.0", "late")], "trunk.1", {"head.0", "head.1"}),  # late can come along
        ([("side", "head.1")], "trunk.1", {"side", "late", "head.0", "head.1"}),  # side can stay
        ([("side", "late")], "trunk.1", {"side", "late", "head.0", "head.1"}),
        ([("side", "late"), ("trunk.0", "late")], "trunk.1", {"head.0", "head.1"}),
        ([("side", "head.0"), ("trunk.0", "side")], "trunk.1", {"late", "head.0", "head.1"}),
        ([("trunk.0", "trunk.1")], "trunk.0", {"side", "trunk.1", "late", "head.0", "head.1"}),
    ],
)
def test_a_cut_parts_ops_of_one_parameter_only_where_one_of_them_comes_after_it(
    pairs: list[tuple[str, str]], last: str, fc_ops: set[str]
) -> None:
    graph = _tied(*pairs)
    cuts = cut_space(graph, Rules(), one_cut=False)
    groups = requested_cut(graph, Rules(), cuts, Request(cut_after=last))
    assert groups is not None
    assert set(cuts.ops(groups)) == fc_ops


def test_an_edited_plan_may_part_ops_of_one_parameter() -> None:
    graph = _tied(("trunk.0", "head.1"))
    cuts = cut_space(graph, Rules(), one_cut=False)
    groups = requested_cut(graph, Rules(), cuts, Request(fc_ops=("head.1",)))
    assert groups is not None
    assert set(cuts.ops(groups)) == {"head.1"}


def test_what_must_be_in_conv_comes_along() -> None:
    assert _fc_ops(Request(cut_after="trunk.1"), Rules(conv_only=("late",))) == {"head.0", "head.1"}


def test_an_edited_plan_is_taken_as_it_is_and_sizes_find_their_own_place() -> None:
    assert _fc_ops(Request(fc_ops=("head.1", "size"))) == {"head.1"}


@pytest.mark.parametrize(
    ("request_", "rules", "message"),
    [
        (Request(cut_after="trunk.2"), Rules(), "no op or module 'trunk.2' in the model; did you mean trunk"),
        (Request(cut_after="zzz"), Rules(), "no op or module 'zzz' in the model; see the op names"),
        (Request(fc_ops=("haed.1",)), Rules(), "no op or module 'haed.1' in the model; did you mean head.1"),
        (Request(cut_after="size"), Rules(), "size is arithmetic on sizes"),
        (Request(cut_after="head.1"), Rules(), "it leaves FC without work"),
        (Request(fc_ops=("head.0",)), Rules(), "head.1 reads head.0"),
        (Request(fc_ops=()), Rules(), "it leaves FC without work"),
        (Request(fc_ops=tuple(NAMES)), Rules(), "it leaves CONV without work"),
        (Request(fc_ops=("late", "head.0", "head.1")), Rules(conv_only=("late",)), "late must be in CONV"),
        (Request(cut_after="trunk.1"), Rules(fc_only=("trunk.0",)), "trunk.0 must be in FC"),
        (
            Request(fc_ops=("head.1",)),
            Rules(together=(("head.0", "head.1"),)),
            "head.0 and head.1 must share a segment",
        ),
        (
            Request(fc_ops=("side", "head.0", "head.1")),
            Rules(order=(("side", "late"),)),
            "late must not run in an earlier",
        ),
    ],
)
def test_what_is_unknown_or_illegal_is_refused_by_name(request_: Request, rules: Rules, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        requested_cut(GRAPH, rules, cut_space(GRAPH, rules), request_)
