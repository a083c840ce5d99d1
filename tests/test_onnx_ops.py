"""Every op against ONNX's own test cases, and attributes in general against onnxruntime."""

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx.backend.test.case import node as onnx_cases
from onnx.backend.test.case.test_case import TestCase

from stanza_compiler.errors import LoadError
from stanza_compiler.onnx_import.file import read_onnx, torch_dtype
from stanza_compiler.onnx_import.importer import IMPORTABLE, Argument, imported
from stanza_compiler.onnx_model import load_onnx
from tests.onnx_graphs import by_onnxruntime, graph_model, saved

FILES = [
    "argmax", "argmin", "attention", "averagepool", "batch_normalization", "cast", "clip", "concat",
    "constantofshape", "conv", "convtranspose", "cumsum", "depthtospace", "div", "einsum", "elu", "expand", "flatten",
    "gather", "gatherelements", "gathernd", "gelu", "gemm", "globalaveragepool", "globalmaxpool",
    "groupnormalization", "gru", "hardsigmoid", "hardswish", "if_", "instance_normalization", "layernormalization",
    "leakyrelu", "logsoftmax", "lpnormalization", "lrn", "lstm", "matmul", "max", "maxpool", "mean", "min", "mish",
    "mod", "neg", "onehot", "pad", "pow", "prelu", "rangeop", "reducel2", "reducemax", "reducemean", "reducemin",
    "reduceprod", "reducesum", "reshape", "resize", "rmsnormalization", "rnn", "rotaryembedding", "scatterelements",
    "scatternd", "selu", "shape", "slice", "softmax", "split", "squeeze", "sum", "swish", "tile", "topk", "transpose",
    "trilu", "unsqueeze", "upsample", "where",
]  # fmt: skip
SLOW = {"averagepool", "maxpool"}  # onnxruntime is asked about them below
# A pattern of those of ONNX's cases that are refused, by file; in all files those of types that torch lacks are.
REFUSED = {
    "attention": "past|softcap|qk_matmul|nonpad|window|padded_kv|fullymasked_qk",
    "averagepool": "dilations",
    "batch_normalization": "training_mode",
    "cast": "_to_(U?INT[24]|FLOAT4|FLOAT8|STRING)",
    "gru": "defaults|initial|seq|batchwise|bidirectional|reverse",
    "if_": "seq|opt",
    "lstm": "peepholes|batchwise",
    "maxpool": "argmax",
    "reducemax": "empty",
    "reducemin": "empty",
    "rangeop": "expanded",  # by a loop
    "resize": "outside|crop|antialias|_not_|_symmetric|cubic_asymmetric|sizes_linear_pytorch|downsample.*align_corners",
    "rnn": "batchwise",
    "rotaryembedding": "3d.*t$|interleaved$|rotary_dim$",
    "scatternd": "multiply|max|min",
}


def verdict(model: onnx.ModelProto, inputs: list[Any], outputs: list[Any], folder: Path) -> str:
    """`equal`, the refusal, or what differs between the imported model and what ONNX says of the case."""
    path = saved(model, folder)
    try:
        file = read_onnx(path, "case", IMPORTABLE)
        takes = [value for value in model.graph.input if value.name not in file.initializers]
        if any(torch_dtype(value.type.tensor_type.elem_type) is None for value in takes):
            return "refused: a type that torch doesn't have"
        args = [_tensor(value) for value, each in zip(inputs, model.graph.input, strict=True) if each in takes]
        arguments = [
            Argument(value.name, f"x{index}", arg.dtype, (tuple(arg.shape), tuple(arg.shape)))
            for index, (value, arg) in enumerate(zip(takes, args, strict=True))
        ]
        module = imported(file, arguments, path=path, place="case").eval()
    except LoadError as error:
        return f"refused: {error}"
    with torch.no_grad():
        results = module(*args)
    results = results if isinstance(results, tuple) else (results,)
    for result, output in zip(results, map(_tensor, outputs), strict=True):
        if result.dtype != output.dtype or result.shape != output.shape:
            return f"{result.dtype}{tuple(result.shape)} for {output.dtype}{tuple(output.shape)}"
        tolerance = 1e-2 if output.dtype in (torch.float16, torch.bfloat16) else 1e-3  # ONNX's own
        if not torch.allclose(result.double(), output.double(), rtol=tolerance, atol=tolerance / 10, equal_nan=True):
            return f"{result} for {output}"
    return "equal"


def _array(value: Any) -> np.ndarray[Any, Any]:
    return np.array(numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value)


def _tensor(value: Any) -> torch.Tensor:
    array = _array(value)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _settled(model: onnx.ModelProto, inputs: list[Any], first: int) -> onnx.ModelProto:
    """The case with its inputs from `first` on as initialisers: axes and shapes are seldom computed."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    for value, each in list(zip(inputs, copied.graph.input, strict=True))[first:]:
        copied.graph.initializer.append(numpy_helper.from_array(_array(value), each.name))
    return copied


def _cases(file: str) -> list[TestCase]:
    """The cases that a file of ONNX's adds to their list when it is imported."""
    before = len(onnx_cases._NodeTestCases)
    with np.errstate(all="ignore"):
        module = importlib.import_module(f"{onnx_cases.__name__}.{file}")
        if len(onnx_cases._NodeTestCases) == before:  # imported by another
            importlib.reload(module)
    return [
        case
        for case in onnx_cases._NodeTestCases[before:]
        if case.model is not None and not (file == "attention" and case.name.endswith("_expanded"))  # hundreds of nodes
    ]


@pytest.mark.parametrize(
    "file", [pytest.param(file, marks=pytest.mark.slow) if file in SLOW else file for file in FILES]
)
def test_ops_compute_what_onnx_itself_says(file: str, tmp_path: Path) -> None:
    cases = _cases(file)
    assert cases
    wrong = {}
    for case in cases:
        inputs, outputs = case.data_sets[0]
        model = case.model
        if file == "layernormalization":  # of whose three outputs only the first is ever read
            del model.graph.output[1:]
            outputs = outputs[:1]
        for first in (len(inputs), 1, 0):
            found = verdict(_settled(model, inputs, first), inputs, outputs, tmp_path)
            if not found.startswith("refused: case"):
                break
        is_refused = re.search(REFUSED.get(file, "^$"), case.name) or "a type that torch" in found
        if found.partition(":")[0] != ("refused" if is_refused else "equal"):
            wrong[case.name] = found
    assert wrong == {}


def assert_agrees(model: onnx.ModelProto, folder: Path, shape: tuple[int, ...]) -> None:
    """The imported module equals onnxruntime at two batch sizes; `shape` is one sample's."""
    path = saved(model, folder)
    try:
        expected = [by_onnxruntime(path, [_sample(batch, shape)]) for batch in (1, 3)]
    except Exception:  # what onnxruntime refuses has no right value
        assume(False)
    module = load_onnx(path, place="model.onnx").module.eval()
    for batch, (output,) in zip((1, 3), expected, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(module(_sample(batch, shape)), output, rtol=1e-4, atol=1e-5)


def _sample(batch: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn((batch, *shape), generator=torch.Generator().manual_seed(batch))


@st.composite
def windows(draw: st.DrawFn, *, dilates: bool) -> dict[str, Any]:
    """kernel_shape, strides, dilations and padding of a convolution or pool over 9x8 elements."""
    pair = st.lists(st.integers(1, 3), min_size=2, max_size=2)
    found: dict[str, Any] = {"kernel_shape": draw(pair), "strides": draw(pair)}
    if dilates:
        found["dilations"] = draw(st.lists(st.integers(1, 2), min_size=2, max_size=2))
    auto_pad = draw(st.sampled_from(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if auto_pad == "NOTSET":
        width = min(found["kernel_shape"])
        found["pads"] = draw(st.lists(st.integers(0, width - 1), min_size=4, max_size=4))
    else:
        found["auto_pad"] = auto_pad
        found["strides"] = [min(pair) for pair in zip(found["strides"], found["kernel_shape"], strict=True)]
    return found


@given(attributes=windows(dilates=True), group=st.sampled_from([1, 2]), has_bias=st.booleans())
@settings(max_examples=25, deadline=None)
def test_convolutions_pad_stride_and_dilate_as_in_onnxruntime(
    attributes: dict[str, Any], group: int, has_bias: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    generator = np.random.default_rng(0)
    weights = {"w": generator.normal(size=(6, 4 // group, *attributes["kernel_shape"])).astype(np.float32)}
    if has_bias:
        weights["b"] = generator.normal(size=6).astype(np.float32)
    node = helper.make_node("Conv", ["x", *weights], ["y"], group=group, **attributes)
    model = graph_model([node], {"x": ("batch", 4, 9, 8)}, ["y"], weights)
    assert_agrees(model, tmp_path_factory.mktemp("conv"), (4, 9, 8))


@given(attributes=windows(dilates=False), data=st.data())
@settings(max_examples=25, deadline=None)
def test_transposed_convolutions_crop_and_extend_as_in_onnxruntime(
    attributes: dict[str, Any], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    weights = {"w": np.random.default_rng(0).normal(size=(4, 3, *attributes["kernel_shape"])).astype(np.float32)}
    if data.draw(st.booleans()):
        attributes["output_padding"] = [data.draw(st.integers(0, stride - 1)) for stride in attributes["strides"]]
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)
    model = graph_model([node], {"x": ("batch", 4, 9, 8)}, ["y"], weights)
    assert_agrees(model, tmp_path_factory.mktemp("transposed"), (4, 9, 8))


@given(attributes=windows(dilates=False), ceils=st.booleans(), data=st.data())
@settings(max_examples=40, deadline=None)
def test_pools_pad_and_round_as_in_onnxruntime(
    attributes: dict[str, Any], ceils: bool, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind = data.draw(st.sampled_from(["MaxPool", "AveragePool"]))
    if kind == "AveragePool":
        attributes["count_include_pad"] = data.draw(st.sampled_from([0, 1]))
    node = helper.make_node(kind, ["x"], ["y"], ceil_mode=int(ceils), **attributes)
    model = graph_model([node], {"x": ("batch", 2, 9, 8)}, ["y"])
    try:
        assert_agrees(model, tmp_path_factory.mktemp("pool"), (2, 9, 8))
    except LoadError as refused:
        assume("rounds up to a window in the padding alone" not in str(refused))
        raise


@given(
    start=st.integers(-9, 9), end=st.one_of(st.integers(-9, 9), st.sampled_from([2**63 - 1, -(2**63)])),
    step=st.sampled_from([1, 2, 3, -1, -2]), axis=st.sampled_from([1, 2, -1]),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_slices_clamp_and_run_backwards_as_in_onnxruntime(
    start: int, end: int, step: int, axis: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assume(step > 0 or end < 2**62)  # onnxruntime takes the largest number for the beginning then
    bounds = {"s": [start], "e": [end], "a": [axis], "t": [step]}
    weights = {name: np.array(value, np.int64) for name, value in bounds.items()}
    model = graph_model([helper.make_node("Slice", ["x", *bounds], ["y"])], {"x": ("batch", 5, 6)}, ["y"], weights)
    assert_agrees(model, tmp_path_factory.mktemp("slice"), (5, 6))


@given(axis=st.integers(-4, 3), opset=st.sampled_from([11, 13]), kind=st.sampled_from(["Softmax", "LogSoftmax"]))
@settings(max_examples=16, deadline=None)
def test_softmax_means_what_its_opset_says(
    axis: int, opset: int, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    node = helper.make_node(kind, ["x"], ["y"], axis=axis)
    model = graph_model([node], {"x": ("batch", 2, 3, 4)}, ["y"], opset=opset)
    assert_agrees(model, tmp_path_factory.mktemp("softmax"), (2, 3, 4))
