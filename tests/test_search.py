"""The search equals brute force, whether it prices every cut or asks the solver."""

from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stanza_compiler import sweep
from stanza_compiler.cluster import Cluster, Device
from stanza_compiler.cost_model import Batch, price_cut, separate, separate_costs
from stanza_compiler.errors import PlanError
from stanza_compiler.opgraph import OpGraph, Rules
from stanza_compiler.passes.partition import partition
from stanza_compiler.plan import Allocation, Prediction, Request
from tests.hand_graphs import legal_fronts, random_models

clusters = st.builds(
    Cluster,
    nodes=st.integers(1, 5),
    gpus_per_node=st.just(1),
    bandwidth_bit_per_s=st.sampled_from([1e8, 1e9, 1e10]),
    latency_s=st.sampled_from([0.0, 50e-6]),
    device=st.just(Device("toy", 1e12, 1e11, 10e-6)),
) | st.builds(
    Cluster,
    nodes=st.integers(1, 2),
    gpus_per_node=st.just(2),
    bandwidth_bit_per_s=st.sampled_from([1e8, 1e10]),
    device=st.just(Device("toy", 1e12, 1e11, 10e-6)),
)
batches = st.sampled_from([Batch(3), Batch(16), Batch(7, is_global=True)])


@pytest.mark.parametrize("cells", [sweep.CELLS, 0], ids=["every cut priced", "solver"])
def test_the_plan_is_the_cheapest_of_all_cuts_and_allocations(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "CELLS", cells)

    @settings(max_examples=50, derandomize=True, deadline=None, database=None)
    @given(random_models(), clusters, batches)
    def check(model: tuple[OpGraph, Rules], cluster: Cluster, batch: Batch) -> None:
        graph, rules = model
        expected = {
            placement: _cheapest(graph, rules, cluster, batch, placement) for placement in ("dedicated", "colocated")
        }
        request = Request(
            strategy="separate",
            batch_size=None if batch.is_global else batch.samples,
            global_batch_size=batch.samples if batch.is_global else None,
        )
        fronts = {placement: _cheapest_front(graph, rules, cluster, batch, placement) for placement in expected}
        if not any((*expected.values(), *fronts.values())):
            with pytest.raises(PlanError, match="nothing to separate"):
                partition(graph, rules, cluster, request)
            return
        plan = partition(graph, rules, cluster, request)
        for placement, least in expected.items():
            found = plan.predictions[placement]
            least_s = min((each for each in (least and least[0], fronts[placement]) if each), default=None)
            assert (found is None) == (least_s is None)
            if found:
                assert _sample_s(found) == pytest.approx(least_s, rel=1e-9)
        if plan.stages[0].role == "fc":
            return
        # Of the plans that tie, the chosen one has the fewest boundary bytes, then the fewest FC ops.
        (*_, least_bytes, least_ops) = min(each for each in expected.values() if each)
        fc_ops = [name for name in plan.stages[1].segments[0] if not graph.op[name].is_size]
        crossing = sum(graph.value[tensor.name].bytes_at(1) for tensor in plan.boundary)
        if len({each[0] for each in expected.values() if each}) == len([each for each in expected.values() if each]):
            assert (crossing, len(fc_ops)) == (least_bytes, least_ops)

    check()


def _cheapest(
    graph: OpGraph, rules: Rules, cluster: Cluster, batch: Batch, placement: str
) -> tuple[float, float, int] | None:
    """(seconds a sample, boundary bytes, FC ops) of the first plan by the order of ties."""
    priced = [
        (_sample_s(separate(graph, cut, allocation, cluster, batch)), _boundary_bytes(graph, cut), len(cut))
        for allocation in _allocations(rules, cluster, placement)
        for cut in _legal_cuts(graph, rules)
    ]
    if not priced:
        return None
    least_s = min(priced)[0]
    _, crossing, ops = min((each for each in priced if each[0] <= least_s * (1 + 1e-9)), key=lambda each: each[1:])
    return least_s, crossing, ops


def _lookups_in_front(graph: OpGraph, rules: Rules) -> list[tuple[frozenset[str], frozenset[str]]]:
    return [
        (front, back)
        for front, back in legal_fronts(graph, rules)
        if not (front | back) & _of_share(graph, 2.0) and not front & _of_share(graph, 0.5, strictly=True)
    ]


def _cheapest_front(graph: OpGraph, rules: Rules, cluster: Cluster, batch: Batch, placement: str) -> float | None:
    """Seconds a sample of the best plan with lookups in front of CONV, None when there is none."""
    return min(
        (
            _sample_s(price_cut(separate_costs(graph, allocation, cluster, batch), front | back, front))
            for allocation in _allocations(rules, cluster, placement)
            for front, back in _lookups_in_front(graph, rules)
        ),
        default=None,
    )


def _allocations(rules: Rules, cluster: Cluster, placement: str) -> list[Allocation]:
    ranks = cluster.world_size
    if placement == "dedicated":
        choices = [
            Allocation(ranks - hosts, hosts, placement) for hosts in range(1, ranks // 2 + 1)
        ]  # a host without workers would idle
    else:
        choices = [Allocation(ranks, hosts, placement) for hosts in range(1, ranks + 1)]
    return [allocation for allocation in choices if allocation.fc_workers == 1 or not rules.single_host]


def _legal_cuts(graph: OpGraph, rules: Rules) -> list[frozenset[str]]:
    placed = [op.name for op in graph.ops if not op.is_size]
    subsets = chain.from_iterable(combinations(placed, size) for size in range(len(placed) + 1))
    legal = [fc for fc in map(frozenset, subsets) if _is_legal(graph, rules, fc, frozenset(placed) - fc)]
    # What brings twice its share of the FLOPs stays in CONV wherever a cut allows that.
    heavy = _of_share(graph, 2.0)
    return [fc for fc in legal if not fc & heavy] or ([] if _lookups_in_front(graph, rules) else legal)


def _of_share(graph: OpGraph, factor: float, *, strictly: bool = False) -> set[str]:
    """Ops with FLOPs whose share of all is at least, or is more than, `factor` times their share of the bytes."""
    flops = sum(op.forward_flops + op.constant_flops for op in graph.ops)
    whole_bytes = sum(parameter.bytes for parameter in graph.parameters)
    found = set()
    for op in graph.ops:
        own = op.forward_flops + op.constant_flops
        size = factor * flops * sum(graph.parameter[name].bytes for name in op.parameters)
        if own and (own * whole_bytes > size if strictly else own * whole_bytes >= size):
            found.add(op.name)
    return found


def _is_legal(graph: OpGraph, rules: Rules, fc: frozenset[str], conv: frozenset[str]) -> bool:
    reads = {name: _needed(graph, graph.op[name].inputs) for name in fc | conv}
    if rules.single_host and any(graph.value[name].kind == "per-rank" for name in _crossing(graph, fc)):
        return False
    return (
        not any(source in fc for name in conv for source in reads[name])
        and not any(source in conv and graph.op[source].output is None for name in fc for source in reads[name])
        and not any(set(graph.op[a].parameters) & set(graph.op[b].parameters) for a in conv for b in fc)
        and not any(set(group) & conv and set(group) & fc for group in rules.together)
        and not any(earlier in fc and later in conv for earlier, later in rules.order)
        and not set(rules.conv_only) & fc
        and not set(rules.fc_only) & conv
        and any(graph.op[name].has_work for name in conv)
        and any(graph.op[name].has_work for name in fc)
    )


def _needed(graph: OpGraph, names: tuple[str, ...]) -> set[str]:
    """Sizes are taken where they are needed, from the tensors they are sizes of."""
    needed: set[str] = set()
    for name in names:
        is_size = name in graph.op and graph.op[name].is_size
        needed |= _needed(graph, graph.op[name].inputs) if is_size else {name}
    return needed


def _boundary_bytes(graph: OpGraph, fc: frozenset[str]) -> float:
    return sum(graph.value[name].bytes_at(1) for name in _crossing(graph, fc))


def _crossing(graph: OpGraph, fc: frozenset[str]) -> list[str]:
    read = {source for name in fc for source in _needed(graph, graph.op[name].inputs)} | _needed(graph, graph.outputs)
    return [name for name in graph.value if name in read and name not in fc]


def _sample_s(prediction: Prediction) -> float:
    return prediction.iteration_s / prediction.samples_per_step
