"""Where a cut can lie, by hand."""

from stanza_compiler.cuts import cut_space
from stanza_compiler.opgraph import Op, OpGraph, Rules
from stanza_compiler.windows import windows
from tests.hand_graphs import parameter, value


def _op(name: str, *inputs: str) -> Op:
    return Op(name, "op", inputs, value(name, 4), parameters=(f"w.{name}",))


def _stretches(ops: tuple[Op, ...], rules: Rules) -> tuple[list[str], str]:
    """The ops of each window, joined, and those behind the last one."""
    parameters = tuple(parameter(f"w.{op.name}", 1) for op in ops)
    graph = OpGraph("hand", 1, (value("x", 4),), ops, (ops[-1].name,), parameters)
    cuts = cut_space(graph, rules)
    found = windows(cuts, tuple(cuts.group[op.name] for op in ops))
    names = [op.name for op in ops]
    return ["".join(names[place] for place in window.ops) for window in found.windows], "".join(
        names[place] for place in found.rest
    )


CHAIN = (_op("a", "x"), _op("b", "a"), _op("c", "b"))
DIAMOND = (_op("a", "x"), _op("b", "a"), _op("c", "a"), _op("d", "b", "c"))
TOWERS = (_op("a", "x"), _op("b", "x"), _op("c", "a"), _op("d", "b", "c"), _op("e", "d"))


def test_every_op_of_a_chain_is_a_window() -> None:
    assert _stretches(CHAIN, Rules()) == (["a", "b", "c"], "")


def test_a_skip_connection_joins_no_windows() -> None:
    assert _stretches((_op("a", "x"), _op("b", "a"), _op("c", "a", "b")), Rules()) == (["a", "b", "c"], "")


def test_branches_are_one_window_up_to_where_they_meet() -> None:
    assert _stretches(DIAMOND, Rules()) == (["a", "bc", "d"], "")
    assert _stretches(TOWERS, Rules()) == (["abc", "d", "e"], "")


def test_what_is_on_one_side_anyhow_belongs_to_no_window_but_is_passed() -> None:
    assert _stretches(TOWERS, Rules(conv_only=("b",))) == (["a", "bc", "d", "e"], "")
    assert _stretches(TOWERS, Rules(fc_only=("d",))) == (["abc"], "")
    assert _stretches((*CHAIN, _op("d", "x")), Rules(conv_only=("d",))) == (["a", "b", "c"], "d")


def test_ops_that_stay_together_hold_together_what_runs_between_them() -> None:
    # c must not come before a: its group holds b, which runs between them.
    ops = (_op("a", "x"), _op("b", "x"), _op("c", "x"), _op("d", "a", "b", "c"))
    rules = Rules(together=(("a", "c"),), order=(("a", "b"),))
    assert _stretches(ops, rules) == (["abc", "d"], "")
