"""The whole model as an ONNX file in which every node says what the plan made of it."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram
from torch.fx.traceback import annotate, preserve_node_meta
from torch.overrides import TorchFunctionMode

from stanza_compiler.errors import EmitError
from stanza_compiler.loader import Source, first_line
from stanza_compiler.opgraph import OpGraph
from stanza_compiler.plan import Plan
from stanza_compiler.structure import take_apart
from stanza_compiler.traced import Interpreter, Trace, copy_sharing_parameters

FILE = "graph.onnx"
_OP = "stanza_op"
_PREFIX = "stanza."
_MULTIPLY = {"Conv", "ConvTranspose", "Einsum", "Gemm", "GRU", "LSTM", "MatMul", "RNN", "Attention"}
_INLINE_BYTES = 1 << 30  # protobuf holds 2 GB; more lies in a file beside it


def export_onnx(source: Source, traced: Trace, graph: OpGraph, plan: Plan, folder: Path) -> None:
    """Write FILE into `folder`: the model in eval mode, its batch free, with the plan as metadata.

    Every node has the metadata stanza.stage, stanza.segment, stanza.op, stanza.forward_flops and
    stanza.parameter_bytes (FLOPs of one sample). Where an op became several nodes, its FLOPs and bytes stand at the one
    that multiplies. The model's own metadata holds the plan's totals, by `stanza.conv.*` those of a stage, and by
    `stanza.without_node.*` what no node has: what runs while training alone, and parameters that nothing reads. Raises
    EmitError where torch.onnx refuses the model.
    """
    import onnx_ir  # here, because importing it takes a second

    try:
        with _quietly(), preserve_node_meta():
            program = _exported(source, traced)
            made = torch.onnx.export(
                program,
                input_names=[leaf.name for leaf in source.call.leaves],
                output_names=_output_names(program),
                dynamo=True,
                optimize=False,
                verbose=False,
            )
        assert made is not None  # it is None only where a file was asked for
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # torch.onnx wraps what happened in pages of advice
            cause = cause.__cause__
        what = f"--onnx: torch.onnx refuses the model, {type(cause).__name__}: {first_line(cause)}"
        raise EmitError(source.place, what, "leave out --onnx") from error
    model = made.model
    _annotate(model, graph, plan)
    onnx_ir.passes.common.NameFixPass()(model)
    size = sum(tensor.nbytes for value in model.graph.initializers.values() if (tensor := value.const_value))
    onnx_ir.save(model, folder / FILE, external_data=f"{FILE}.data" if size > _INLINE_BYTES else None)
    onnx.checker.check_model(str(folder / FILE), full_check=True)


def _output_names(program: ExportedProgram) -> list[str]:
    count = len(program.graph_signature.user_outputs)
    return ["output"] if count == 1 else [f"output_{number}" for number in range(count)]


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _exported(source: Source, traced: Trace) -> ExportedProgram:
    """torch.export's program of the trace in eval mode, each node with the op that it comes from."""
    root = copy_sharing_parameters(traced.root)
    root.train(False)
    interpreter = _Noting(traced, root)

    def forward(_: nn.Module, *tensors: torch.Tensor) -> list[torch.Tensor]:
        with _FourAxes():
            output = interpreter.run(*tensors)
        return list(dict.fromkeys(take_apart(output, lambda item: isinstance(item, torch.Tensor))[0]))

    # The wrapper has the root's own members, so that weights keep their names.
    wrapper = type("Model", (nn.Module,), {"forward": forward})()
    for members in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
        vars(wrapper)[members] = vars(root)[members]
    wrapper.training = False
    args, kwargs = source.call.arguments(max(source.call.batch_size, 2))
    axes = tuple(None if leaf.batch_axis is None else {leaf.batch_axis: Dim.AUTO} for leaf in source.call.leaves)
    tensors = tuple(source.call.tensors(args, kwargs))
    return torch.export.export(wrapper, tensors, dynamic_shapes=(axes,), strict=False)


class _FourAxes(TorchFunctionMode):
    """Calls attention on (batch, heads, tokens, features), the one layout that torch.onnx knows."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        given: dict[str, Any] = (
            dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False)) | kwargs
        )
        if given["query"].ndim != 3:
            return func(*args, **kwargs)
        wide: dict[str, Any] = {
            name: value.unsqueeze(-3) if isinstance(value, torch.Tensor) and value.ndim == 3 else value
            for name, value in given.items()
        }
        return func(**wide).squeeze(1)


class _Noting(Interpreter):
    """Runs a trace so that whoever traces this run finds each op's name at what the op does."""

    def run_call(self, node: fx.Node) -> Any:
        name = self.traced.names.get(node)
        if name is None or node.op == "placeholder":
            return super().run_call(node)
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        with annotate({_OP: name}):  # fx's own run_node would put the traced node's notes there
            return getattr(self, node.op)(node.target, args, kwargs)


def _annotate(model: Any, graph: OpGraph, plan: Plan) -> None:
    """Write the plan into the metadata of an onnx_ir model and of its nodes."""
    places = {
        name: (stage.role, segment)
        for stage in plan.stages
        for segment, names in enumerate(stage.segments)
        for name in names
    }
    nodes = list(model.graph)
    names = _op_names(nodes)
    bearers: dict[str, int] = {}
    for number, (node, name) in enumerate(zip(nodes, names, strict=True)):
        if name not in bearers or (node.op_type in _MULTIPLY and nodes[bearers[name]].op_type not in _MULTIPLY):
            bearers[name] = number
    costs = _costs(graph)
    flops_left, bytes_left = plan.totals.forward_flops, plan.totals.parameter_bytes
    for number, (node, name) in enumerate(zip(nodes, names, strict=True)):
        role, segment = places[name]
        flops, parameter_bytes = costs[name] if bearers[name] == number else (0, 0)
        flops_left, bytes_left = flops_left - flops, bytes_left - parameter_bytes
        node.doc_string = None
        node.metadata_props.clear()  # torch.onnx writes stack traces there, with this machine's paths
        _note(node, "", stage=role, segment=segment, op=name, forward_flops=flops, parameter_bytes=parameter_bytes)
    totals = plan.totals
    _note(model, "", verdict=plan.verdict, reason=plan.reason)
    _note(model, "", forward_flops=totals.forward_flops, parameter_bytes=totals.parameter_bytes)
    _note(model, "without_node.", forward_flops=flops_left, parameter_bytes=bytes_left)
    for stage in plan.stages:
        _note(model, f"{stage.role}.", forward_flops=stage.forward_flops, parameter_bytes=stage.parameter_bytes)


def _note(thing: Any, prefix: str, **entries: object) -> None:
    thing.metadata_props.update({f"{_PREFIX}{prefix}{key}": str(value) for key, value in entries.items()})


def _op_names(nodes: list[Any]) -> list[str]:
    """The op of each ONNX node; one that torch.onnx made of its own accord belongs to the node after it."""
    names: list[str | None] = []
    for node in nodes:
        traced = node.meta.get("node")
        names.append(None if traced is None else traced.meta.get("custom", {}).get(_OP))
    found = [name for name in names if name is not None]
    following = found[-1] if found else None
    for number in reversed(range(len(names))):
        following = names[number] = names[number] or following
    return [name for name in names if name is not None]


def _costs(graph: OpGraph) -> dict[str, tuple[int, int]]:
    """By op, the FLOPs of one sample and the bytes of the parameters that no op before it reads."""
    costs: dict[str, tuple[int, int]] = {}
    seen: set[str] = set()
    for op in graph.ops:
        new = [name for name in dict.fromkeys(op.parameters) if name not in seen]
        seen.update(new)
        costs[op.name] = op.forward_flops, sum(graph.parameter[name].bytes for name in new)
    return costs
