"""Where no best cut can lie: by hand, and against every cut of small models."""

import pytest
from hypothesis import HealthCheck, given, settings

from stanza_compiler.cluster import Cluster
from stanza_compiler.cost_model import Batch, Costs, price_cut, separate_costs
from stanza_compiler.cuts import Cuts, cut_space
from stanza_compiler.dominance import Dominance, dominance
from stanza_compiler.opgraph import Op, OpGraph, Rules
from stanza_compiler.plan import Allocation
from stanza_compiler.tally import tally
from tests.hand_graphs import every_cut, parameter, random_models, value

THREE = Allocation(3, 1, "dedicated")


def _linear(name: str, *inputs: str) -> Op:
    return Op(
        name,
        "Linear",
        inputs,
        value(name, 400),
        parameters=(f"{name}.w",),
        forward_flops=10**6,
        backward_flops=2 * 10**6,
    )


def _pointwise(name: str, *inputs: str, sent: int = 400) -> Op:
    return Op(name, "op", inputs, value(name, sent), memory_bytes_per_sample=800)


def _graph(*ops: Op) -> OpGraph:
    parameters = tuple(parameter(name, 10**5) for op in ops for name in op.parameters)
    return OpGraph("hand", 4, (value("x", 400, requires_grad=False),), ops, (ops[-1].name,), parameters)


def _joining(graph: OpGraph, rules: Rules | None = None) -> tuple[set[str], set[str]]:
    cuts = cut_space(graph, rules or Rules())
    costs = separate_costs(graph, THREE, Cluster(), Batch(4))
    found = dominance(tally([costs], cuts), cuts)
    conv = {name for name, number in cuts.group.items() if found.joins_conv[number]}
    return conv, {name for name, number in cuts.group.items() if found.joins_fc[number]}


def test_an_activation_joins_the_layer_before_it() -> None:
    graph = _graph(_linear("a", "x"), _pointwise("relu", "a"), _linear("b", "relu"))
    assert _joining(graph) == ({"relu"}, set())


def test_a_sum_with_a_skipped_tensor_joins_what_it_sums() -> None:
    graph = _graph(_linear("a", "x"), _linear("b", "a"), _pointwise("sum", "a", "b"), _linear("c", "sum"))
    assert _joining(graph) == ({"sum"}, set())


def test_what_enlarges_a_tensor_joins_what_reads_it_instead() -> None:
    graph = _graph(_linear("a", "x"), Op("expand", "op", ("a",), value("expand", 4000)), _linear("b", "expand"))
    assert _joining(graph) == (set(), {"expand"})


def test_what_others_read_as_well_is_sent_anyhow() -> None:
    # Each layer views `early`, which crosses as long as any later layer is in FC.
    graph = _graph(
        _linear("early", "x"),
        Op("view0", "view", ("early",), value("view0", 400)),
        _linear("a", "early", "view0"),
        Op("view1", "view", ("early",), value("view1", 400)),
        _linear("b", "a", "view1"),
    )
    conv, fc = _joining(graph)
    assert "view0" not in conv
    assert "view1" in conv | fc


def test_the_only_work_of_a_side_stays_there() -> None:
    graph = _graph(_linear("a", "x"), Op("matmul", "op", ("a",), value("matmul", 4), forward_flops=10))
    assert _joining(graph) == (set(), set())


def test_what_is_pinned_joins_nothing() -> None:
    graph = _graph(_linear("a", "x"), _pointwise("relu", "a"), _linear("b", "relu"))
    assert _joining(graph, Rules(conv_only=("relu",))) == (set(), set())


@pytest.mark.parametrize("allocation", [THREE, Allocation(3, 2, "dedicated"), Allocation(4, 2, "colocated")], ids=str)
def test_joining_costs_neither_time_nor_bytes_in_any_cut(allocation: Allocation) -> None:
    @settings(
        max_examples=30, derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
    )
    @given(random_models())
    def check(model: tuple[OpGraph, Rules]) -> None:
        graph, rules = model
        cuts = cut_space(graph, rules)
        legal = every_cut(cuts)
        costs = separate_costs(graph, allocation, Cluster(nodes=5), Batch(3))
        found = dominance(tally([costs], cuts), cuts)
        for side in legal:
            for number in range(len(cuts.groups)):
                moved = _moved(cuts, found, side, number)
                if moved is not None:
                    assert moved in legal
                    (before_s, before), (after_s, after) = _priced(costs, cuts, side), _priced(costs, cuts, moved)
                    assert after_s <= before_s * (1 + 1e-12)
                    assert after <= before

    check()


def _moved(cuts: Cuts, found: Dominance, side: int, number: int) -> int | None:
    """The cut that is said to be no worse than `side`, by one group."""
    bit = 1 << number
    if found.joins_conv[number] and side & bit and not any(side >> other & 1 for other in cuts.before[number]):
        return side ^ bit
    if found.joins_fc[number] and not side & bit and all(side >> other & 1 for other in cuts.after[number]):
        return side | bit
    return None


def _priced(costs: Costs, cuts: Cuts, side: int) -> tuple[float, float]:
    fc_ops = cuts.ops(side)
    crossing = sum(tensor.value.bytes_at(1) for tensor in costs.tensors if tensor.crosses(fc_ops))
    return price_cut(costs, fc_ops).iteration_s, crossing
