"""From the graph of an ONNX file to a module, node by node."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from stanza_compiler.errors import LoadError, StanzaError
from stanza_compiler.onnx_import.builder import Builder
from stanza_compiler.onnx_import.file import OnnxFile, node_name, to_torch
from stanza_compiler.onnx_import.module import OnnxModule, empty_module
from stanza_compiler.onnx_import.names import scope
from stanza_compiler.onnx_import.ops import OPS
from stanza_compiler.onnx_import.rebatch import Rebatching
from stanza_compiler.onnx_import.values import Known, Number, Traced, UnsupportedError, Value, shortest

IMPORTABLE = frozenset({*OPS, "Constant", "If"})


@dataclass(frozen=True, slots=True)
class Argument:
    """One input of the graph: its ONNX name, its name in forward, its dtype and its shape at two batch sizes."""

    onnx_name: str
    name: str
    dtype: torch.dtype
    shapes: tuple[tuple[int, ...], tuple[int, ...]]


def imported(
    file: OnnxFile,
    arguments: Sequence[Argument],
    *,
    path: Path,
    place: str,
    rebatching: Rebatching | None = None,
) -> OnnxModule:
    """The module that computes what the file's graph computes, at any batch size.

    `rebatching` is told for a file that was exported for one batch size.

    Raises LoadError that names the node which can't be imported.
    """
    module = empty_module(tuple(argument.name for argument in arguments), path)
    builder = Builder(module, opset=file.opset, initializers=file.initializers, uses=file.uses, rebatching=rebatching)
    env: dict[str, Value] = dict(file.initializers)
    for argument in arguments:
        env[argument.onnx_name] = builder.add_input(argument.dtype, argument.shapes)
    outputs = [output.name for output in file.graph.output]
    _Importer(builder, file, place).run(file.graph, env, outputs)
    builder.finish([env[name] for name in outputs])
    return module


class _Importer:
    """Runs the nodes of a graph through their handlers."""

    def __init__(self, builder: Builder, file: OnnxFile, place: str) -> None:
        self.builder, self.file, self.place = builder, file, place

    def run(self, graph: onnx.GraphProto, env: dict[str, Value], outputs: Iterable[str]) -> None:
        """Put what the graph's needed nodes give into `env`."""
        needed = _needed(graph, outputs)
        for number, node in enumerate(graph.node, start=1):
            if not needed.intersection(node.output) or all(name in env for name in node.output if name):
                continue
            builder = self.builder
            if graph is self.file.graph:
                builder.node = number
            builder.name, builder.scope = node.output[0], scope(node)
            are_read = builder.outputs = [bool(name) and name in needed for name in node.output]
            results = self._results(node, env)
            for name, result, is_read in zip(node.output, results, are_read, strict=False):
                if is_read:
                    env[name] = _value(result, name)
            if any(are_read[len(results) :]):
                raise self._refusal(node, f"gives its output {node.output[len(results)]!r} in a way unknown here")

    def _results(self, node: onnx.NodeProto, env: dict[str, Value]) -> Sequence[Any]:
        """What a node gives, as many outputs as its handler makes."""
        inputs = [env[name] if name else None for name in node.input]
        attributes = {attribute.name: self._attribute(attribute) for attribute in node.attribute}
        try:
            if node.op_type == "Constant":
                return [_constant(**attributes)]
            if node.op_type == "If":
                return self._branch(inputs[0], env, **attributes)
            handler = OPS[node.op_type]
            _forbid_unfit(handler, inputs, attributes)
            result = handler(self.builder, *inputs, **attributes)
        except StanzaError:
            raise
        except UnsupportedError as error:
            raise self._refusal(node, str(error)) from error
        except Exception as error:
            if self.builder.rebatching is not None:
                stored = self.builder.rebatching.stored
                what = f"its batch is fixed to {stored}: node {node_name(node)!r} takes no other"
                raise LoadError(self.place, what, "export it with a dynamic batch axis") from error
            what = f"node {node_name(node)!r}, a {node.op_type}, fails: {_first_line(error)}"
            raise LoadError(self.place, what, "check it with onnxruntime, or pass --input with other sizes") from error
        return result if isinstance(result, list | tuple) else [result]

    def _refusal(self, node: onnx.NodeProto, what: str) -> LoadError:
        return LoadError(
            self.place, f"node {node_name(node)!r}, a {node.op_type}, {what}", "change it before the export"
        )

    def _branch(
        self,
        condition: Value | None,
        env: dict[str, Value],
        *,
        then_branch: onnx.GraphProto,
        else_branch: onnx.GraphProto,
    ) -> Sequence[Value]:
        """The branch that is always taken."""
        if not isinstance(condition, Known):
            raise UnsupportedError("branches on what the model computes")
        graph = then_branch if bool(condition.tensor) else else_branch
        inner = env | {tensor.name: Known(to_torch(tensor, self.place), tensor.name) for tensor in graph.initializer}
        outputs = [output.name for output in graph.output]
        self.run(graph, inner, outputs)
        return [inner[name] for name in outputs]

    def _attribute(self, attribute: onnx.AttributeProto) -> Any:
        """A Python value; tensors as Known, floats as short as float32 allows."""
        value = onnx.helper.get_attribute_value(attribute)
        match value:
            case onnx.TensorProto():
                return Known(to_torch(value, self.place), value.name)
            case bytes():
                return value.decode(errors="replace")
            case float():
                return shortest(value)
        if isinstance(value, str | int | onnx.GraphProto):
            return value
        return [
            item.decode(errors="replace")
            if isinstance(item, bytes)
            else shortest(item)
            if type(item) is float
            else item
            for item in value
        ]


def _needed(graph: onnx.GraphProto, outputs: Iterable[str]) -> set[str]:
    """The names that the outputs depend on; of graphs inside of nodes, all that they read."""
    needed = set(outputs)
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(filter(None, node.input))
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    needed.update(name for inner in attribute.g.node for name in inner.input)
                    needed.update(output.name for output in attribute.g.output)
    return needed


def _forbid_unfit(handler: Callable[..., Any], inputs: Sequence[Any], attributes: Mapping[str, Any]) -> None:
    """Raise UnsupportedError for inputs or attributes that the handler doesn't know."""
    try:
        inspect.signature(handler).bind(None, *inputs, **attributes)
    except TypeError as error:
        raise UnsupportedError(f"is of a kind that can't be imported: {error}") from error


def _constant(
    *,
    value: Known | None = None,
    value_float: float | None = None,
    value_floats: list[float] | None = None,
    value_int: int | None = None,
    value_ints: list[int] | None = None,
) -> Known:
    if value is not None:
        return value
    for content, dtype in (
        (value_float, torch.float32),
        (value_floats, torch.float32),
        (value_int, torch.int64),
        (value_ints, torch.int64),
    ):
        if content is not None:
            return Known(torch.tensor(content, dtype=dtype), "")
    raise UnsupportedError("holds neither a tensor nor numbers")


def _value(result: Value | Number, name: str) -> Value:
    """A handler's result under its name; constants go by their own names."""
    if isinstance(result, Known):
        return result if result.name else Known(result.tensor, name)
    if isinstance(result, bool | int | float):
        return Known(torch.tensor(result), name)
    if isinstance(result, Traced) and not isinstance(result.samples[0], torch.Tensor):
        return np.array(result, dtype=object)
    return result


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or repr(error)
