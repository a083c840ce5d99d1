"""The second front-end: torch.export, its graph unlifted and its regions flattened."""

import itertools
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram

from stanza_compiler.aten_python import spell
from stanza_compiler.call import Call, Leaf
from stanza_compiler.leaf_calls import Recorder, put_back
from stanza_compiler.mode_reads import ModeReads, has_own_modes
from stanza_compiler.sources import record_frames
from stanza_compiler.structure import Structure, take_apart
from stanza_compiler.text import paths_to
from stanza_compiler.traced import Autocast, Gradients, Region, set_regions

MODEL = "model"
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in ', re.MULTILINE)
_CHECKED_BATCHES = (*range(2, 130), 1000, 4096)
_ASSERTIONS = re.compile(r"^(_assert_|sym_constrain_|_functional_assert_)")


class BatchError(Exception):
    """The model takes another path for other batch sizes."""


@dataclass(frozen=True, slots=True)
class Exported:
    """torch.export's graph over the model's own names and the structure of its output.

    `constants` are tensors that forward() made of literals, by the name under which the graph reads them.
    `reads_mode` says whether the other mode may give another graph.
    """

    graph: fx.Graph
    result: Structure
    constants: dict[str, torch.Tensor]
    reads_mode: bool


class _Called(nn.Module):
    """Calls the model with its example's own argument structure; the tensors alone are inputs and outputs."""

    def __init__(self, model: nn.Module, call: Call, note: Callable[[Structure], None], reads: ModeReads) -> None:
        super().__init__()
        self.add_module(MODEL, model)
        self.call, self.note, self.reads = call, note, reads

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        args, kwargs = self.call.rebuild(tensors)
        with self.reads:
            output = self._modules[MODEL](*args, **kwargs)  # type: ignore[misc]  # it was added above
        values, result = take_apart(
            output, lambda item: isinstance(item, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool)
        )
        self.note(result)  # torch.export undoes what is assigned to attributes
        return values


def export(root: nn.Module, call: Call, *, leaves: frozenset[str]) -> Exported:
    """Export `root` in the mode that it is in, with every input's batch axis dynamic and `leaves` as calls of modules.

    Raises BatchError where the model distinguishes batch sizes, otherwise whatever torch.export and the model raise.
    """
    results: list[Structure] = []
    reads = ModeReads()
    called = _Called(root, call, results.append, reads)
    called.training = root.training
    args, kwargs = call.arguments(max(call.batch_size, 2))
    tensors = call.tensors(args, kwargs)
    axes = [None if leaf.batch_axis is None else {leaf.batch_axis: Dim.AUTO} for leaf in call.leaves]
    with Recorder(root, leaves) as recorder, torch.enable_grad():
        program = torch.export.export(called, tuple(tensors), dynamic_shapes=(tuple(axes),), strict=False)
    _forbid_batch_sizes(program, call, tensors)
    unlifting = _Unlifting(program, root, call)
    whole = leaves - put_back(unlifting.graph, tuple(recorder.calls), unlifting.nodes)
    _drop_unused(unlifting.graph)
    spell(unlifting.graph)
    return Exported(unlifting.graph, results[-1], unlifting.constants, _reads_mode(root, whole, reads.readers))


def _reads_mode(root: nn.Module, whole: frozenset[str], readers: set[int]) -> bool:
    """Whether modules outside of the layers that stand in the graph as such do something by their mode."""
    return any(
        (id(module) in readers and whole.isdisjoint(paths_to(path))) or has_own_modes(module)
        for path, module in root.named_modules()
    )


def _forbid_batch_sizes(program: ExportedProgram, call: Call, tensors: Sequence[torch.Tensor]) -> None:
    """Raise BatchError unless the path that was traced is that of every batch size from 2 on."""
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"][-len(call.leaves) :]
    for leaf, node in zip(call.leaves, placeholders, strict=True):
        if leaf.batch_axis is not None and not isinstance(node.meta["val"].shape[leaf.batch_axis], torch.SymInt):
            raise BatchError(f"forward() works at one size of {leaf.name}'s axis {leaf.batch_axis} alone")
    for guard in getattr(program, "_guards_code", []):  # private: without it, only what certify tries is known
        code = compile(guard, "guard", "eval")
        for batch in _CHECKED_BATCHES:
            if not _holds(
                code, [_like(tensor, leaf, batch) for leaf, tensor in zip(call.leaves, tensors, strict=True)]
            ):
                raise BatchError(f"forward() takes another path where the batch isn't {_readable(guard, call)}")


def _like(tensor: torch.Tensor, leaf: Leaf, batch: int) -> torch.Tensor:
    """An input of `batch` samples without data."""
    sizes = [batch if axis == leaf.batch_axis else size for axis, size in enumerate(tensor.shape)]
    return torch.empty(sizes, dtype=tensor.dtype, device="meta")


def _holds(guard: CodeType, inputs: list[torch.Tensor]) -> bool:
    """Whether a condition that torch.export's graph stands on is met by `inputs`."""
    return bool(eval(guard, {"L": {"tensors": inputs, "args": inputs}, "torch": torch, "math": math}))


def _readable(guard: str, call: Call) -> str:
    """`x.shape[0] <= 8` for the guard `L['tensors'][0].size()[0] <= 8`."""
    return re.sub(r"L\['\w+'\]\[(\d+)\]\.size\(\)", lambda found: f"{call.leaves[int(found[1])].name}.shape", guard)


class _Unlifting:
    """Copies an exported graph: state is read where it is used, assertions are left out, regions are flattened."""

    def __init__(self, program: ExportedProgram, root: nn.Module, call: Call) -> None:
        self.program, self.root, self.call = program, root, call
        self.held = {
            id(value): f"{path}.{name}" if path else name
            for path, module in root.named_modules()
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor)
        }
        self.lifted_constants = program.graph_signature.inputs_to_lifted_tensor_constants
        self.graph = fx.Graph()
        self.nodes: dict[str, fx.Node] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.attributes: dict[str, fx.Node] = {}
        self._place_inputs()
        values = self._copied(program.graph_module, {}, ())
        self.graph.output(tuple(values))

    def _place_inputs(self) -> None:
        signature = self.program.graph_signature
        self.state: dict[str, str] = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **self.lifted_constants,
        }
        placeholders = [node for node in self.program.graph.nodes if node.op == "placeholder"]
        users = [node for node in placeholders if node.name not in self.state]
        for node, leaf in zip(users, self.call.leaves, strict=True):
            self.nodes[node.name] = self.graph.placeholder(leaf.name)
            self.nodes[node.name].meta.update(val=node.meta.get("val"))
        for node in placeholders:
            if node.name in self.state:
                self.nodes[node.name] = self._attribute(self.state[node.name], node)

    def _attribute(self, target: str, node: fx.Node) -> fx.Node:
        name = target.removeprefix(f"{MODEL}.")
        if node.name in self.lifted_constants:
            tensor = self.program.constants[target]
            assert isinstance(tensor, torch.Tensor)
            name = self.held.get(id(tensor)) or self._free_name()
            if name not in self.held.values():
                self.constants[name] = tensor
        read = self.graph.create_node("get_attr", name)
        read.meta.update(val=node.meta.get("val"))
        return read

    def _free_name(self) -> str:
        names = (f"constant_{number}" for number in itertools.count())
        return next(name for name in names if name not in self.constants and not hasattr(self.root, name))

    def _copied(self, module: nn.Module, given: dict[fx.Node, Any], inside: tuple[Region, ...]) -> Sequence[Any]:
        """Copy the graph of `module`, whose placeholders are `given`; its outputs."""
        graph: fx.Graph = module.graph  # type: ignore[assignment]  # it is a GraphModule
        values: dict[Any, Any] = dict(given)
        for node in graph.nodes:
            if node.op == "placeholder":
                if node not in values:
                    values[node] = self.nodes[node.name]
            elif node.op == "get_attr":
                values[node] = getattr(module, str(node.target))
            elif node.op == "output":
                outputs: Any = fx.map_arg(node.args[0], values.__getitem__)
                return outputs if isinstance(outputs, tuple | list) else (outputs,)
            elif (region := _region(node)) is not None:
                values[node] = self._inlined(node, region, values, inside)
            elif node.target is operator.getitem and isinstance(values[node.all_input_nodes[0]], tuple | list):
                index: Any = node.args[1]
                values[node] = values[node.all_input_nodes[0]][index]
            elif not _ASSERTIONS.match(_name(node.target)):
                values[node] = self._call(node, values, inside)
        raise AssertionError("a graph without an output")

    def _inlined(
        self, node: fx.Node, region: Region, values: dict[Any, Any], inside: tuple[Region, ...]
    ) -> Sequence[Any]:
        at = next(index for index, argument in enumerate(node.args) if _is_graph(values, argument))
        body = values[node.args[at]]
        arguments = [fx.map_arg(argument, values.__getitem__) for argument in node.args[at + 1 :]]
        placeholders = [inner for inner in body.graph.nodes if inner.op == "placeholder"]
        return self._copied(body, dict(zip(placeholders, arguments, strict=True)), (*inside, region))

    def _call(self, node: fx.Node, values: dict[fx.Node, Any], inside: tuple[Region, ...]) -> fx.Node:
        copied = self.graph.create_node(
            node.op,
            node.target,
            fx.map_arg(node.args, values.__getitem__),
            fx.map_arg(node.kwargs, values.__getitem__),
            name=node.name,
        )
        copied.meta.update({key: node.meta[key] for key in ("val", "nn_module_stack") if key in node.meta})
        set_regions(copied, inside)
        frames = [(found["file"], int(found["line"])) for found in _FRAME.finditer(node.meta.get("stack_trace") or "")]
        record_frames(copied, frames)
        self.nodes[node.name] = copied
        return copied


def _is_graph(values: dict[fx.Node, Any], argument: Any) -> bool:
    return isinstance(argument, fx.Node) and isinstance(values.get(argument), fx.GraphModule)


def _region(node: fx.Node) -> Region | None:
    """The region that a higher-order call stands for."""
    match _name(node.target):
        case "wrap_with_set_grad_enabled":
            return Gradients(bool(node.args[0]))
        case "wrap_with_autocast":
            device_type, dtype, enabled = node.args[:3]
            return Autocast(str(device_type), dtype, bool(enabled))  # type: ignore[arg-type]  # a dtype by its schema
    return None


def _name(target: Any) -> str:
    return str(getattr(getattr(target, "overloadpacket", target), "__name__", target))


def _drop_unused(graph: fx.Graph) -> None:
    """Erase calls whose value nobody reads and that neither write nor draw random numbers, and state nobody reads."""
    for node in reversed(graph.nodes):
        if not node.users and (node.op == "get_attr" or (node.op == "call_function" and _is_pure(node.target))):
            graph.erase_node(node)


def _is_pure(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return True  # arithmetic on sizes
    return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags
