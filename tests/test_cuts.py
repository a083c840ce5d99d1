"""Groups, pins and the number of legal cuts, counted by hand."""

from stanza_compiler.cuts import cut_space, members
from stanza_compiler.opgraph import Op, OpGraph, Rules
from tests.hand_graphs import every_cut, parameter, value


def _op(name: str, *inputs: str, is_size: bool = False, yields: bool = True, shared: str = "") -> Op:
    used = () if is_size else (f"w.{name}", *([shared] if shared else []))
    return Op(name, "op", inputs, value(name, 4) if yields else None, parameters=used, is_size=is_size)


def _graph(*ops: Op) -> OpGraph:
    names = dict.fromkeys(name for op in ops for name in op.parameters)
    return OpGraph("hand", 1, (value("x", 4),), ops, (ops[-1].name,), tuple(parameter(name, 1) for name in names))


# x -> a -> b -> d, a -> c -> d
DIAMOND = _graph(_op("a", "x"), _op("b", "a"), _op("c", "a"), _op("d", "b", "c"))


def _fc_sides(graph: OpGraph, rules: Rules) -> set[str]:
    cuts = cut_space(graph, rules)
    return {"".join(sorted(cuts.ops(side))) for side in every_cut(cuts)}


def test_a_diamond_has_four_cuts_that_leave_work_on_both_sides() -> None:
    assert _fc_sides(DIAMOND, Rules()) == {"d", "bd", "cd", "bcd"}


def test_every_rule_forbids_what_it_says() -> None:
    assert _fc_sides(DIAMOND, Rules(together=(("b", "c"),))) == {"d", "bcd"}
    assert _fc_sides(DIAMOND, Rules(order=(("b", "c"),))) == {"d", "cd", "bcd"}
    assert _fc_sides(DIAMOND, Rules(conv_only=("b",))) == {"d", "cd"}
    assert _fc_sides(DIAMOND, Rules(fc_only=("c",))) == {"cd", "bcd"}
    assert _fc_sides(DIAMOND, Rules(conv_only=("c",), fc_only=("a",))) == set()


def test_what_lies_between_two_ops_that_stay_together_stays_with_them() -> None:
    cuts = cut_space(DIAMOND, Rules(together=(("a", "d"),)))
    assert cuts.groups == (("a", "b", "c", "d"),)
    assert list(cuts.smallest()) == []


def test_users_of_a_trainable_parameter_stay_together() -> None:
    graph = _graph(_op("a", "x"), _op("b", "a", shared="tied"), _op("c", "a", shared="tied"), _op("d", "b", "c"))
    assert _fc_sides(graph, Rules()) == {"d", "bcd"}


def test_a_tuple_stays_with_its_readers() -> None:
    graph = _graph(_op("a", "x"), _op("b", "a", yields=False), _op("c", "b"), _op("d", "b"), _op("e", "c", "d"))
    assert _fc_sides(graph, Rules()) == {"e", "bcde"}


def test_a_size_is_no_op_of_its_own_but_its_reader_needs_its_tensor() -> None:
    graph = _graph(_op("a", "x"), _op("s", "a", is_size=True), _op("b", "x", "s"))
    cuts = cut_space(graph, Rules())
    assert cuts.groups == (("a",), ("b",))
    assert cuts.edges == ((0, 1),)


def test_members_are_the_set_bits() -> None:
    assert list(members(0b101001)) == [0, 3, 5]
