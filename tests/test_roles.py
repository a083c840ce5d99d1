"""Which ops count as compute-heavy, by hand."""

from stanza_compiler.opgraph import Op, OpGraph, Parameter
from stanza_compiler.roles import compute_heavy


def test_an_op_is_compute_heavy_from_twice_its_share_of_the_parameters() -> None:
    parameters = tuple(
        Parameter(name, (size,), "float32", size, 4 * size, True) for name, size in (("a", 20), ("b", 21), ("c", 59))
    )
    ops = (
        Op("twice", "Conv2d", (), None, parameters=("a",), forward_flops=400),  # 40 % of the FLOPs, 20 % of the bytes
        Op("less", "Conv2d", (), None, parameters=("b",), forward_flops=400),  # 40 % and 21 %
        Op("linear", "Linear", (), None, parameters=("c",), forward_flops=200),
        Op("relu", "ReLU", (), None),
    )
    assert compute_heavy(OpGraph("model", 1, (), ops, (), parameters)) == ("twice",)


def test_attention_without_parameters_is_compute_heavy() -> None:
    ops = (Op("attention", "matmul", (), None, forward_flops=10), Op("add", "add", (), None))
    assert compute_heavy(OpGraph("model", 1, (), ops, (), ())) == ("attention",)


def test_a_model_without_counted_flops_has_none() -> None:
    assert compute_heavy(OpGraph("model", 1, (), (Op("relu", "ReLU", (), None),), (), ())) == ()
