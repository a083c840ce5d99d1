"""The program's optimum on the networks whose best cut is known."""

import pytest

from stanza_compiler.cluster import Cluster
from stanza_compiler.cost_model import Batch, price_cut, separate_costs
from stanza_compiler.cuts import cut_space
from stanza_compiler.opgraph import Rules
from stanza_compiler.plan import Allocation
from stanza_compiler.solver import cheapest_cut, fewest_bytes
from tests.hand_graphs import alexnet, every_cut

ALLOCATIONS = [Allocation(9, 1, "dedicated"), Allocation(7, 3, "dedicated"), Allocation(10, 1, "colocated")]


@pytest.mark.parametrize("allocation", ALLOCATIONS, ids=str)
def test_it_finds_the_best_of_all_cuts(allocation: Allocation) -> None:
    graph = alexnet()
    cuts = cut_space(graph, Rules())
    costs = separate_costs(graph, allocation, Cluster(nodes=10), Batch(64))
    times = {side: price_cut(costs, cuts.ops(side)).iteration_s for side in every_cut(cuts)}
    found = cheapest_cut(costs, cuts, at_most_s=max(times.values()))
    assert found is not None
    assert times[found] == pytest.approx(min(times.values()), rel=1e-9)


def test_it_says_when_nothing_is_fast_enough() -> None:
    graph = alexnet()
    cuts = cut_space(graph, Rules())
    costs = separate_costs(graph, ALLOCATIONS[0], Cluster(nodes=10), Batch(64))
    assert cheapest_cut(costs, cuts, at_most_s=1e-3) is None


def test_of_equally_fast_cuts_the_free_view_goes_to_conv() -> None:
    graph = alexnet()
    cuts = cut_space(graph, Rules())
    costs = separate_costs(graph, ALLOCATIONS[0], Cluster(nodes=10), Batch(64))
    at_most_s = price_cut(
        costs, frozenset(op.name for op in graph.ops if op.name.startswith(("linear", "flat")))
    ).iteration_s
    found = fewest_bytes(costs, cuts, at_most_s=at_most_s)
    assert found is not None
    assert min(cuts.ops(found)) == "linear0"
