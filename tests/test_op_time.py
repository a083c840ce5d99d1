"""One op's seconds by the roofline, by hand."""

from dataclasses import replace

import pytest

from stanza_compiler.cluster import Device
from stanza_compiler.op_time import backward_s, forward_s, late_share, needs_backward
from stanza_compiler.opgraph import Op, OpGraph
from tests.hand_graphs import parameter, value

DEVICE = Device("toy", flops_per_s=1e3, memory_bytes_per_s=1e2, overhead_s=0.25)
CONV = Op(
    "conv",
    "Conv2d",
    ("x",),
    value("conv", 4),
    parameters=("w",),
    forward_flops=100,
    backward_flops=150,
    constant_flops=50,
    memory_bytes_per_sample=3,
    constant_memory_bytes=8,
)
VIEW = Op("view", "flatten", ("conv",), value("view", 4))
GRAPH = OpGraph("one", 10, (value("x", 4, requires_grad=False),), (CONV, VIEW), ("view",), (parameter("w", 2),))


def test_the_slower_of_compute_and_memory_counts_plus_the_launch() -> None:
    assert forward_s(GRAPH, CONV, DEVICE, 4) == pytest.approx(max(450 / 1000, 20 / 100) + 0.25)
    assert forward_s(GRAPH, CONV, DEVICE, 0) == pytest.approx(max(50 / 1000, 8 / 100) + 0.25)


def test_the_backward_moves_twice_the_memory() -> None:
    assert backward_s(GRAPH, CONV, DEVICE, 4) == pytest.approx(max(700 / 1000, 40 / 100) + 0.25)


def test_a_view_is_free() -> None:
    assert forward_s(GRAPH, VIEW, DEVICE, 4) == backward_s(GRAPH, VIEW, DEVICE, 4) == 0.0


@pytest.mark.parametrize(
    ("kind", "backward_flops", "sparse_lookups", "share"),
    [("Linear", 200, 0, 0.5), ("linear", 100, 0, 1.0), ("Embedding", 0, 0, 1.0), ("Embedding", 0, 3, 0.0),
     ("Conv2d", 200, 0, 0.0)],
)  # fmt: skip
def test_what_is_late_is_the_weights_product_or_a_dense_tables_sums(
    kind: str, backward_flops: int, sparse_lookups: int, share: float
) -> None:
    op = replace(CONV, kind=kind, backward_flops=backward_flops, sparse_lookups=sparse_lookups)
    assert late_share(GRAPH, op) == share
    frozen = replace(GRAPH, parameters=(parameter("w", 2, trainable=False),))
    assert late_share(frozen, op) == 0.0


def test_measured_seconds_scale_from_the_profiled_batch() -> None:
    measured = Op("conv", "Conv2d", ("x",), value("conv", 4), forward_flops=9, forward_s=0.5, backward_s=0.8)
    assert forward_s(GRAPH, measured, DEVICE, 5) == pytest.approx(0.25)
    assert backward_s(GRAPH, measured, DEVICE, 5) == pytest.approx(0.4)


def test_what_no_trainable_parameter_feeds_has_no_backward() -> None:
    stem = Op("stem", "ReLU", ("x",), value("stem", 4, requires_grad=False))
    pair = Op("pair", "chunk", ("conv",), None)
    graph = OpGraph("three", 1, GRAPH.inputs, (stem, CONV, pair), ("conv",), GRAPH.parameters)
    assert needs_backward(graph) == {"conv", "pair"}
