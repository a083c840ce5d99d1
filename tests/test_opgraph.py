"""How a profiled graph reads and what it adds up to."""

from dataclasses import replace

import pytest

from stanza_compiler.opgraph import Op, OpGraph, Parameter, Rules, Value

IMAGE = Value("image", (8, 3, 4, 4), "float32", "batched", 0, 192, 0, False)
HIDDEN = Value("conv", (8, 5, 4, 4), "float32", "batched", 0, 320, 0, True)
SIZE = Op("getitem", "getitem", ("conv",), None, is_size=True)
CONV = Op(
    "conv", "Conv2d", ("image",), HIDDEN, "model.py:7", ("conv.weight",),
    forward_flops=4_320, backward_flops=4_320, constant_flops=10,
)  # fmt: skip
ADD = Op("add", "add", ("conv", "getitem"), replace(HIDDEN, name="add"), "model.py:8", forward_flops=80)
GRAPH = OpGraph(
    name="small",
    batch_size=8,
    inputs=(IMAGE,),
    ops=(CONV, SIZE, ADD),
    outputs=("add",),
    parameters=(
        Parameter("conv.weight", (5, 3, 3, 3), "float32", 135, 540, True, ("tied.weight",)),
        Parameter("unused", (2,), "bfloat16", 2, 4, False),
    ),
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (IMAGE, "image f32[B, 3, 4, 4]"),
        (replace(IMAGE, batch_axis=1, dtype="bfloat16"), "image bf16[8, B, 4, 4]"),
        (replace(IMAGE, batch_axis=None, kind="per-rank", dtype="int64"), "image i64[8, 3, 4, 4]"),
        (replace(IMAGE, shape=(), batch_axis=None, dtype="complex64"), "image c64[]"),
        (replace(IMAGE, shape=(8,), dtype="float8_e4m3fn"), "image float8_e4m3fn[B]"),
    ],
)
def test_a_value_reads_as_name_dtype_and_sizes(value: Value, text: str) -> None:
    assert str(value) == text


def test_a_values_bytes_grow_with_the_batch_from_a_constant() -> None:
    assert replace(IMAGE, constant_bytes=7).bytes_at(10) == 7 + 1920


def test_a_graph_reads_as_a_line_per_input_and_op() -> None:
    lines = [" ".join(line.split()) for line in str(GRAPH).splitlines()]
    assert lines == [
        "input image f32[B, 3, 4, 4]",
        "conv Conv2d f32[B, 5, 4, 4] 4,320 FLOPs image",
        "getitem getitem - 0 FLOPs conv",
        "add add f32[B, 5, 4, 4] 80 FLOPs conv, getitem",
        "return add",
    ]


def test_values_are_the_inputs_and_what_ops_yield_in_program_order() -> None:
    assert list(GRAPH.value) == ["image", "conv", "add"]
    assert GRAPH.value["conv"] is HIDDEN


def test_totals_are_sums_over_ops_and_over_parameters_counted_once() -> None:
    assert (GRAPH.forward_flops, GRAPH.constant_flops, GRAPH.parameter_bytes) == (4_400, 10, 544)


def test_the_network_has_an_edge_from_each_maker_to_each_reader() -> None:
    assert sorted(GRAPH.network.edges) == [("conv", "add"), ("conv", "getitem"), ("getitem", "add"), ("image", "conv")]


@pytest.mark.parametrize(
    ("op", "has_work"),
    [
        (CONV, True),
        (SIZE, False),
        (replace(SIZE, constant_flops=1), True),
        (replace(SIZE, parameters=("w",)), True),
        (replace(SIZE, uncounted=("lstm",)), True),
    ],
)
def test_an_op_has_work_when_it_computes_or_holds_parameters(op: Op, has_work: bool) -> None:
    assert op.has_work is has_work


def test_rules_read_as_a_line_each() -> None:
    rules = Rules((("a", "b"), ("c", "d", "e")), (("r1", "r2"),), ("a",), ("z",), "the loss couples", ("mind this",))
    assert str(rules).splitlines() == [
        "together   a, b",
        "together   c, d, e",
        "order      r1 before r2",
        "conv only  a",
        "fc only    z",
        "one host   the loss couples",
        "note       mind this",
    ]
    assert str(Rules()) == ""
