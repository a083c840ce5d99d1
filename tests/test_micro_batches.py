"""Into how many pieces a step is cut, and where it can't be."""

from dataclasses import replace

import pytest

from stanza_compiler.cluster import Cluster
from stanza_compiler.codecs import PLAIN
from stanza_compiler.cost_model import Batch, costs_on, price_cut
from stanza_compiler.errors import PlanError
from stanza_compiler.micro_batches import Pieces
from stanza_compiler.opgraph import OpGraph, Rules
from stanza_compiler.passes.partition import partition
from stanza_compiler.plan import Allocation, Plan, Request
from stanza_compiler.search import Candidate
from tests.hand_graphs import alexnet, vgg16
from tests.test_sharded_cost import CLUSTER, GRAPH, SHARDABLE

TEN = Cluster(nodes=10)


def pieces(graph: OpGraph, allocation: Allocation, cluster: Cluster, samples: int) -> Pieces:
    """Steps of the cut before the last Linear layers, `samples` a rank."""
    costs = costs_on(graph, cluster, Batch(samples))(allocation)
    names = [op.name for op in graph.ops]
    first = next(number for number, op in enumerate(graph.ops) if op.kind == "Linear")
    fc_ops = frozenset(names[first:])
    candidate = Candidate(price_cut(costs, fc_ops), costs, 0, fc_ops, 0.0)
    return Pieces(graph, cluster, PLAIN, candidate)


@pytest.mark.parametrize("graph", [alexnet(), vgg16()], ids=["alexnet", "vgg16"])
@pytest.mark.parametrize(
    "allocation",
    [
        Allocation(9, 1, "dedicated"),
        Allocation(8, 2, "dedicated"),
        Allocation(10, 1, "colocated"),
        Allocation(10, 3, "colocated"),
    ],
    ids=str,
)
def test_a_step_in_one_piece_takes_what_the_cost_model_says(graph: OpGraph, allocation: Allocation) -> None:
    for bandwidth in (1e9, 10e9, 100e9):
        cut = pieces(graph, allocation, replace(TEN, bandwidth_bit_per_s=bandwidth), 64)
        assert cut.step_s(1) == pytest.approx(cut.chosen.prediction.iteration_s, rel=1e-9)


def test_every_piece_but_one_packs_all_weights_again_forward_and_backward() -> None:
    slow = replace(TEN, nodes=1, device=replace(TEN.device, flops_per_s=1e9, memory_bytes_per_s=1e11, overhead_s=0.0))
    cut = pieces(vgg16(), Allocation(1, 1, "colocated"), slow, 64)
    # VGG-16 has 138,357,544 parameters of 4 bytes; one rank does one thing after the other
    again_s = 2 * 3 * 138_357_544 * 4 / 1e11
    assert cut.step_s(2) - cut.step_s(1) == pytest.approx(again_s, rel=1e-6)
    assert cut.step_s(4) - cut.step_s(1) == pytest.approx(3 * again_s, rel=1e-6)


NO_RULES = Rules()


def _asked(rules: Rules = NO_RULES, **wishes: object) -> Plan:
    return partition(vgg16(), rules, TEN, replace(Request(strategy="separate", batch_size=64), **wishes))  # type: ignore[arg-type]


def test_a_pipeline_hides_transfers_of_large_batches_and_a_note_says_how_much() -> None:
    plan = _asked(placement="dedicated", micro_batches=None)
    assert plan.micro_batches > 1
    assert any(note.startswith(f"a step is cut into {plan.micro_batches} micro-batches") for note in plan.notes)


def test_small_batches_are_left_whole_because_every_op_has_its_overhead_again() -> None:
    assert _asked(batch_size=1, micro_batches=None).micro_batches == 1
    slow_start = replace(TEN, device=replace(TEN.device, overhead_s=0.01))
    request = Request(strategy="separate", batch_size=64, micro_batches=None)
    assert partition(vgg16(), Rules(), slow_start, request).micro_batches == 1


def test_samples_that_influence_each_other_are_not_taken_apart() -> None:
    rules = Rules(uncut="BatchNorm2d 'bn' uses the statistics of what it sees at once")
    assert _asked(rules, micro_batches=None).micro_batches == 1
    with pytest.raises(PlanError, match="can't be cut into 2 micro-batches: BatchNorm2d 'bn' uses the statistics"):
        _asked(rules, micro_batches=2)


def test_what_takes_no_micro_batches_refuses_them_and_auto_is_one() -> None:
    assert _asked(strategy="data-parallel", micro_batches=None).micro_batches == 1
    with pytest.raises(PlanError, match="into 2 micro-batches: the whole model is trained data-parallel"):
        _asked(strategy="data-parallel", micro_batches=2)


def test_sharded_hosts_take_no_micro_batches() -> None:
    rules = Rules(shardable=SHARDABLE)
    request = Request(strategy="separate", placement="sharded", micro_batches=None)
    assert partition(GRAPH, rules, CLUSTER, request).micro_batches == 1
    with pytest.raises(PlanError, match="into 2 micro-batches: the hosts are sharded; pass --micro-batches 1, or auto"):
        partition(GRAPH, rules, CLUSTER, replace(request, micro_batches=2))
