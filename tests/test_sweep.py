"""Long chains and towers: every cut is priced, by hand or one by one."""

from dataclasses import replace

import pytest

from stanza_compiler import sweep as sweeping
from stanza_compiler.cluster import Cluster
from stanza_compiler.cost_model import Batch, Costs, price_cut, separate_costs
from stanza_compiler.cuts import Cuts, cut_space
from stanza_compiler.dominance import dominance
from stanza_compiler.opgraph import Op, OpGraph, Rules
from stanza_compiler.plan import Allocation
from stanza_compiler.search import search
from stanza_compiler.sweep import Swept, sweep
from stanza_compiler.tally import tally
from tests.hand_graphs import every_cut, parameter, value

CHOICES = (Allocation(3, 1, "dedicated"), Allocation(4, 2, "colocated"))


def _tower(name: str, layers: int, source: str) -> list[Op]:
    ops: list[Op] = []
    for layer in range(layers):
        for op, flops in ((f"{name}{layer}", 10**6 * (layer + 1)), (f"{name}{layer}.relu", 0)):
            sent = 64 * (1 + (7 * layer) % 5)  # some tensors are small, some are large
            used = (f"{op}.w",) if flops else ()
            ops.append(
                Op(op, "op", (source,), value(op, sent), "", used, (), flops, 2 * flops, memory_bytes_per_sample=sent)
            )
            source = op
    return ops


def _graph(ops: list[Op], *outputs: str) -> OpGraph:
    names = [name for op in ops for name in op.parameters]
    weights = tuple(parameter(name, 10**4 * (1 + place % 7)) for place, name in enumerate(names))
    return OpGraph("hand", 4, (value("x", 400, requires_grad=False),), tuple(ops), outputs, weights)


def _costs(graph: OpGraph) -> list[Costs]:
    return [separate_costs(graph, allocation, Cluster(), Batch(4)) for allocation in CHOICES]


def _swept(graph: OpGraph, cuts: Cuts) -> Swept:
    sums = tally(_costs(graph), cuts)
    return sweep(sums, cuts, dominance(sums, cuts))


def _cheapest(costs: Costs, cuts: Cuts) -> float:
    return min(price_cut(costs, cuts.ops(side)).iteration_s for side in every_cut(cuts))


@pytest.mark.parametrize(
    "graph",
    [
        _graph(_tower("a", 120, "x"), "a119.relu"),
        _graph([*_tower("a", 9, "x"), *_tower("b", 9, "x")], "a8.relu", "b8.relu"),
        _graph([*_tower("a", 5, "x"), *_tower("b", 5, "a2.relu"), *_tower("c", 3, "a0")], "a4.relu", "b4.relu", "c2"),
    ],
    ids=["chain", "two towers", "branches"],
)
def test_the_best_cut_is_the_cheapest_one(graph: OpGraph) -> None:
    cuts = cut_space(graph, Rules())
    found = _swept(graph, cuts)
    assert found.wide == ()
    for costs, (first, *others) in zip(_costs(graph), found.best, strict=True):
        least_s = price_cut(costs, cuts.ops(first)).iteration_s
        assert least_s == pytest.approx(_cheapest(costs, cuts), rel=1e-9)
        times_s = [price_cut(costs, cuts.ops(side)).iteration_s for side in others]
        assert [least_s, *times_s] == sorted([least_s, *times_s])


def test_a_window_with_too_many_cuts_is_named_and_the_others_are_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    front = _tower("a", 3, "x")
    wide = [op for branch in "bcdef" for op in _tower(branch, 2, "a2.relu")]
    join = Op("join", "cat", tuple(f"{branch}1.relu" for branch in "bcdef"), value("join", 64))
    graph = _graph([*front, *wide, join, *_tower("g", 3, "join")], "g2.relu")
    cuts = cut_space(graph, Rules())
    monkeypatch.setattr(sweeping, "CELLS", 2 * 3**5 - 2)  # five branches of two layers have 3^5 cuts
    found = _swept(graph, cuts)
    (window,) = found.wide
    assert {name[0] for number in window.groups for name in cuts.groups[number]} == set("bcdef")
    assert all(found.best)
    ranked = search(_costs(graph), cuts, None)
    least_s = min(_cheapest(costs, cuts) / costs.samples for costs in _costs(graph))
    assert ranked[0].sample_s == pytest.approx(least_s, rel=1e-9)


def test_cuts_that_leave_a_view_behind_are_given_up_where_there_would_be_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of 12 layers views one early tensor: 2^12 cuts, of which 13 have every view beside its layer."""
    ops = _tower("early", 1, "x")
    for layer in range(12):
        view = Op(f"view{layer}", "view", ("early0.relu",), value(f"view{layer}", 64))
        source = f"b{layer - 1}" if layer else "early0.relu"
        (body, _) = _tower(f"b{layer}.", 1, source)
        ops += [view, replace(body, name=f"b{layer}", inputs=(source, view.name), output=value(f"b{layer}", 64))]
    graph = _graph(ops, "b11")
    cuts = cut_space(graph, Rules())
    monkeypatch.setattr(sweeping, "CELLS", 2 * 600)
    found = _swept(graph, cuts)
    assert found.wide == ()
    for costs, (first, *_) in zip(_costs(graph), found.best, strict=True):
        assert price_cut(costs, cuts.ops(first)).iteration_s == pytest.approx(_cheapest(costs, cuts), rel=1e-9)
