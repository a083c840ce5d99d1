"""A plan and its graph, small enough to check what is said about them by hand."""

from stanza_compiler.opgraph import Op, OpGraph, Parameter, Value
from stanza_compiler.plan import (
    STRATEGIES,
    TERMS,
    Allocation,
    Alternative,
    Boundary,
    Certificate,
    Plan,
    Prediction,
    Stage,
    Totals,
)


def _value(name: str, *sizes: int) -> Value:
    elements = 1
    for size in sizes:
        elements *= size
    return Value(name, (2, *sizes), "float32", "batched", 0, 4 * elements, 0, True)


GRAPH = OpGraph(
    name="small",
    batch_size=2,
    inputs=(_value("image", 3),),
    ops=(
        Op(
            "body.conv",
            "Conv2d",
            ("image",),
            _value("body.conv", 9),
            "small.py:7",
            ("body.conv.weight",),
            (),
            9_000,
            18_000,
        ),
        Op("body.relu", "ReLU", ("body.conv",), _value("body.relu", 9), "small.py:8"),
        Op("flatten", "flatten", ("body.relu",), _value("flatten", 9), "small.py:9"),
        Op("head|0", "Linear", ("flatten",), _value("head|0", 5), "small.py:10", ("head|0.weight",), (), 1_000, 2_000),
        Op("lstm", "LSTM", ("head|0",), _value("lstm", 5), "small.py:11", uncounted=("aten.lstm.input",)),
    ),
    outputs=("lstm",),
    parameters=(
        Parameter("body.conv.weight", (25,), "float32", 25, 100, True),
        Parameter("head|0.weight", (225,), "float32", 225, 900, True),
    ),
)


def _prediction(allocation: Allocation, step_s: float, samples: int, sent: int) -> Prediction:
    """Nine equal terms that sum up to `step_s`."""
    return Prediction(allocation, samples, sent, dict.fromkeys(TERMS, step_s / 9))


DEDICATED = Allocation(9, 1, "dedicated")

PLAN = Plan(
    source="small.py",
    model_hash="0" * 64,
    front_end="fx",
    requires=(),
    batch_size=64,
    cluster={
        "nodes": 10,
        "gpus_per_node": 1,
        "bandwidth_bit_per_s": 10e9,
        "latency_s": 50e-6,
        "local_bandwidth_bit_per_s": 100e9,
        "device": "v100",
    },
    verdict="separate",
    reason="80% faster per sample than data-parallel",
    totals=Totals(1_000, 10_000, 0, 5),
    stages=(
        Stage("conv", (("body.conv", "body.relu", "flatten"),), 3, 25, 100, 9_000),
        Stage("fc", (("head|0", "lstm"),), 2, 225, 900, 1_000),
    ),
    boundary=(Boundary("flatten", (2, 9), "float32", "batched", 0, 36, True, 0, 1),),
    allocation=DEDICATED,
    predictions={
        **dict.fromkeys(STRATEGIES),
        "data_parallel": _prediction(Allocation(10, 0, "data_parallel"), 0.9, 640, 128_000),
        "dedicated": _prediction(DEDICATED, 0.45, 576, 57_600),
    },
    break_even_bit_per_s=25e9,
    alternatives=(
        Alternative("dedicated", Allocation(8, 2, "dedicated"), 2, "head|0", 0.5, 1_024.0, "more allreduce"),
    ),
    notes=("small.py:8: kept on the conv side",),
    certificate=Certificate(True, 1.5e-7, 0.0, True, True, ("train", "eval")),
)
