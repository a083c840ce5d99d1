"""An ONNX file, read and found to be one that can be imported."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
import onnx.checker
import onnx.external_data_helper
import onnx.inliner
import onnx.numpy_helper
import torch

from stanza_compiler.errors import LoadError
from stanza_compiler.onnx_import.unmerge import unmerged
from stanza_compiler.onnx_import.values import Known, is_uniform

OLDEST_OPSET = 6
LARGEST_WEIGHT = 1e6
"""In magnitude; what holds larger numbers is a mask."""

_DTYPES: dict[int, torch.dtype] = {
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.DOUBLE: torch.float64,
    onnx.TensorProto.FLOAT16: torch.float16,
    onnx.TensorProto.BFLOAT16: torch.bfloat16,
    onnx.TensorProto.INT8: torch.int8,
    onnx.TensorProto.INT16: torch.int16,
    onnx.TensorProto.INT32: torch.int32,
    onnx.TensorProto.INT64: torch.int64,
    onnx.TensorProto.UINT8: torch.uint8,
    onnx.TensorProto.BOOL: torch.bool,
    onnx.TensorProto.COMPLEX64: torch.complex64,
    onnx.TensorProto.COMPLEX128: torch.complex128,
}
_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_UNNAMED = re.compile(r"(val|scalar|const)\w*_?\d*|onnx::\w+|.*const(ant)?\w*(/.*)?(:\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """The graph of a file with its functions written out, its opset, and its initialisers by name.

    `uses` counts how often nodes and outputs read a name.
    """

    graph: onnx.GraphProto
    opset: int
    initializers: dict[str, Known]
    uses: Counter[str]


def torch_dtype(onnx_type: int) -> torch.dtype | None:
    """The dtype of a TensorProto.DataType, None where torch has none."""
    return _DTYPES.get(onnx_type)


def read_onnx(path: Path, place: str, ops: Collection[str]) -> OnnxFile:
    """Read and check a file; nothing of it is run, and nothing outside of its folder is opened.

    Raises LoadError for what is no ONNX model, for external data outside of the file's folder and for ops that aren't
    in `ops`.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # of protobuf's, which onnx has no name for
        raise LoadError(place, f"no ONNX model can be read from it: {error}", "export it again") from error
    if not model.HasField("graph"):
        raise LoadError(place, "no ONNX model can be read from it: it holds no graph", "export it again")
    tensors = [*_tensors(model.graph), *(tensor for each in model.functions for tensor in _tensors(each))]
    external = [tensor for tensor in tensors if tensor.data_location == onnx.TensorProto.EXTERNAL]
    for tensor in external:
        _forbid_outside(tensor, path.parent, place)
    try:
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        graph, opset = model.graph, _opset(model, place)
        _forbid_unknown(graph, ops, place)
        onnx.checker.check_model(str(path))
        for tensor in _tensors(graph):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                onnx.external_data_helper.load_external_data_for_tensor(tensor, str(path.parent))
    except (onnx.checker.ValidationError, ValueError, RuntimeError, OSError) as error:
        what = f"it is no valid ONNX model: {str(error).strip().splitlines()[0]}"
        raise LoadError(place, what, "export it again") from error
    if graph.sparse_initializer:
        raise LoadError(place, "it holds sparse initialisers", "export it with dense ones")
    kinds = _kinds(graph)
    stored = {tensor.name: tensor for tensor in graph.initializer}
    if not any(torch_dtype(tensor.data_type) in _FLOATING for tensor in stored.values()):
        stored |= _constants(graph)  # some exporters write the weights as such
    initializers = {name: _initializer(tensor, name, kinds.get(name, ""), place) for name, tensor in stored.items()}
    del graph.initializer[:]
    graph, initializers = unmerged(graph, initializers)
    return OnnxFile(graph, opset, initializers, Counter(_reads(graph)))


def _nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of the graphs inside of it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _tensors(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.TensorProto]:
    if isinstance(graph, onnx.GraphProto):
        yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)


def _forbid_outside(tensor: onnx.TensorProto, folder: Path, place: str) -> None:
    """Raise LoadError for external data that isn't in the model's own folder."""
    location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
    inside = PurePosixPath(location.replace("\\", "/"))
    what = f"the data of {tensor.name!r} are in {location!r}"
    if not location or inside.is_absolute() or ".." in inside.parts or ":" in inside.parts[0]:
        raise LoadError(place, f"{what}, which is not a file in its own folder", "save it with its data beside it")
    target = folder / inside
    if not target.resolve().is_relative_to(folder.resolve()):
        raise LoadError(place, f"{what}, a link to another folder", "save it with its data beside it")
    if not target.is_file():
        raise LoadError(place, f"{what}, which is missing", "put that file beside it")


def _opset(model: onnx.ModelProto, place: str) -> int:
    versions = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    opset = versions.get("ai.onnx", 0)
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= opset <= newest:
        raise LoadError(
            place, f"its opset is {opset or 'missing'}", f"export it with an opset from {OLDEST_OPSET} to {newest}"
        )
    return int(opset)


def _forbid_unknown(graph: onnx.GraphProto, ops: Collection[str], place: str) -> None:
    """Raise LoadError that names the first node which can't be imported, and the other such ops."""
    unknown = [node for node in _nodes(graph) if node.domain not in ("", "ai.onnx") or node.op_type not in ops]
    if not unknown:
        return
    first = unknown[0]
    names = dict.fromkeys(f"{node.domain}.{node.op_type}".removeprefix(".") for node in unknown)
    others = list(names)[1:4]
    also = f" (so are {', '.join(others)})" if others else ""
    if first.domain in ("", "ai.onnx"):
        what = f"node {node_name(first)!r} is a {first.op_type}, which can't be imported{also}"
        raise LoadError(place, what, "replace that op before the export, or pass the PyTorch model")
    what = f"node {node_name(first)!r} is a {first.op_type} of the domain {first.domain!r}, not ONNX's own{also}"
    raise LoadError(place, what, "export it without that runtime's optimisations, or pass the PyTorch model")


def node_name(node: onnx.NodeProto) -> str:
    """How errors call a node: by its name, else by its first output."""
    return str(node.name or next(filter(None, node.output), ""))


def _kinds(graph: onnx.GraphProto) -> dict[str, str]:
    """What torch's exporter noted of the initialisers."""
    return {
        value.name: entry.value
        for value in graph.value_info
        for entry in value.metadata_props
        if entry.key == "pkg.torch.export.graph_signature.InputSpec.kind"
    }


def _constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """The tensors of Constant nodes by their outputs' names."""
    nodes = (node for node in graph.node if node.op_type == "Constant")
    return {node.output[0]: each.t for node in nodes for each in node.attribute if each.name == "value"}


def _initializer(proto: onnx.TensorProto, name: str, kind: str, place: str) -> Known:
    tensor = to_torch(proto, place)
    return Known(tensor, name, trains=tensor.is_floating_point() and _trains(tensor, name, kind))


def _trains(tensor: torch.Tensor, name: str, kind: str) -> bool:
    """Whether floating numbers are weights: unless noted otherwise they are, but for masks and unnamed constants."""
    if kind:
        return kind == "PARAMETER"
    if not tensor.numel() or not bool(tensor.abs().max() < LARGEST_WEIGHT):  # NaN neither
        return False
    return not (_UNNAMED.fullmatch(name) and is_uniform(tensor))


def to_torch(proto: onnx.TensorProto, place: str) -> torch.Tensor:
    """The tensor of a TensorProto. Raises LoadError for a type that torch doesn't have and for too few bytes."""
    dtype = torch_dtype(proto.data_type)
    if dtype is None:
        kind = onnx.TensorProto.DataType.Name(proto.data_type)
        raise LoadError(place, f"{proto.name!r} holds {kind}, which can't be imported", "export it in float32")
    try:
        array = np.array(onnx.numpy_helper.to_array(proto))
    except ValueError as error:
        raise LoadError(place, f"{proto.name!r} can't be read: {error}", "export it again") from error
    if dtype == torch.bfloat16 and array.dtype.itemsize == 2:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    assert array.size == math.prod(proto.dims)
    return torch.from_numpy(array).to(dtype)


def _reads(graph: onnx.GraphProto) -> Iterator[str]:
    for node in _nodes(graph):
        yield from filter(None, node.input)
    yield from (output.name for output in graph.output)
