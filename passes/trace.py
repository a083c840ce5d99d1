"""From a module to a graph of its calls that is equal to it."""

import itertools
import linecache
import math
import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from stanza_compiler.call import Call
from stanza_compiler.comparison import Observation, difference, observe, seeded
from stanza_compiler.eager_lines import first_loss
from stanza_compiler.errors import TraceError
from stanza_compiler.loader import RUN_IT, Source, first_line, user_code, user_line
from stanza_compiler.module_copy import copied
from stanza_compiler.sources import node_source, record_line, short_path


@dataclass(frozen=True, slots=True)
class Trace:
    """The traced model: `root` is a copy of it that shares its parameters, `graph` its calls in program order.

    `names` gives each call's op name: its module path (`classifier.1`, the second call `classifier.1#2`),
    else its fx node name.
    """

    root: nn.Module
    graph: fx.Graph
    names: dict[fx.Node, str]
    front_end: str

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Call the graph as the model is called; no code is generated, so that no name can break it."""
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        interpreter = fx.Interpreter(self.root, graph=self.graph)
        interpreter.extra_traceback = False  # it would rewrite the errors' messages
        return interpreter.run(*leaves)

    def __str__(self) -> str:
        return str(self.graph)


@dataclass(frozen=True, slots=True)
class _Step:
    batch: int
    training: bool


@dataclass(frozen=True, slots=True)
class _Setting:
    """Under what a model is traced; `attributes` are (module path, name, value) set beforehand."""

    training: bool
    seed: int = 0
    attributes: tuple[tuple[str, str, Any], ...] = ()


class _Tracer(fx.Tracer):
    """symbolic_trace with torch.nn modules as leaves and the example call's own argument structure.

    Only the call's tensors become placeholders; everything else stays the value that the example gave, so that
    defaults, keywords and containers mean what they mean in eager mode.
    """

    def __init__(self, call: Call) -> None:
        super().__init__(autowrap_modules=(math,))
        self.proxy_buffer_attributes = True
        self.call = call

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        if node.op not in ("placeholder", "output"):
            record_line(node)
        return node

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        proxies = [self.create_proxy("placeholder", leaf.name, (), {}) for leaf in self.call.leaves]
        args, kwargs = self.call.rebuild(proxies)

        def called(root: nn.Module, *_: Any) -> Any:
            return root_fn(root, *args, **kwargs)

        return called, [self.root, *proxies]


def trace(source: Source, *, front_end: str = "auto", verify: bool = True) -> Trace:
    """Trace a copy of the model by torch.fx; with `verify`, believe it only once it equals the eager model.

    Equal means: outputs, loss and gradients in train mode, outputs in eval mode, at two batch sizes. Raises TraceError
    with the user's line and the cause.
    """
    if front_end == "export":
        raise TraceError(source.place, "the torch.export front-end isn't built yet", "use --trace fx")
    _forbid_hooks(source)
    expected = _observe_eagerly(source) if verify else []
    setting = _Setting(source.module.training)
    traced, drew = _traced(source, setting)
    _forbid_frozen(source, traced, setting, drew=drew)
    _compare(source, traced, expected)
    return traced


def _forbid_hooks(source: Source) -> None:
    """Raise TraceError for a hook on the model itself: torch.fx traces its forward() alone."""
    module = source.module
    for hooks in (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks):
        for hook in hooks.values():
            code = getattr(hook, "__code__", None)
            place = f"{short_path(Path(code.co_filename), source.root)}:{code.co_firstlineno}" if code else source.place
            raise TraceError(place, "torch.fx ignores a hook on the whole model", "call it in forward()")


def _traced(source: Source, setting: _Setting) -> tuple[Trace, bool]:
    """One symbolic trace of a copy of the model, and whether random numbers were drawn meanwhile."""
    root = copy_sharing_parameters(source.module)
    modes = [module.training for module in root.modules()]
    root.train(setting.training)
    for path, name, value in setting.attributes:
        setattr(root.get_submodule(path), name, value)
    versions = {name: value._version for name, value in _held(root) if isinstance(value, torch.Tensor)}
    with seeded(setting.seed):
        before = _random_state()
        try:
            graph = _Tracer(source.call).trace(root)
        except Exception as error:
            raise _refusal(source, error) from error
        drew = _random_state() != before
    for module, mode in zip(root.modules(), modes, strict=True):
        module.training = mode
    _forbid_lost_writes(source, root, versions)
    _keep_placeholder_names(graph, source.call)
    return Trace(root, graph, _op_names(graph), "fx"), drew


def _random_state() -> tuple[object, ...]:
    numpy_state = np.random.get_state(legacy=True)
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), str(numpy_state)


def _forbid_lost_writes(source: Source, root: nn.Module, versions: dict[str, int]) -> None:
    """Raise TraceError where forward() assigned an attribute, or wrote a tensor, outside of the graph."""
    for name, value in _held(root):
        place = node_source(value.node, source.root) if isinstance(value, fx.Proxy) else ""
        rewritten = isinstance(value, torch.Tensor) and value._version != versions.get(name, value._version)
        if isinstance(value, fx.Proxy) or rewritten:
            what = f"forward() writes self.{name} in a way that torch.fx doesn't record"
            raise TraceError(place or source.place, what, f"make it a buffer, written by self.{name}.copy_(...)")


def _held(root: nn.Module) -> Iterator[tuple[str, Any]]:
    """Buffers and plain attributes by dotted name."""
    for path, module in root.named_modules():
        for name, value in (*vars(module).items(), *module._buffers.items()):
            yield f"{path}.{name}" if path else name, value


def _forbid_frozen(source: Source, traced: Trace, setting: _Setting, *, drew: bool) -> None:
    """Raise TraceError where another mode, other random numbers or a second call would give another graph.

    fx keeps what Python made of them while tracing; small effects would pass a comparison.
    """
    second_call = replace(setting, attributes=_changed_attributes(source.module, traced.root))
    if not drew and not _first_difference(source, traced, replace(second_call, training=not setting.training)):
        return
    layer = "use a torch.nn module such as nn.Dropout"
    seeds = [replace(setting, seed=seed) for seed in range(1, 9)] if drew else []
    causes = [
        *((other, "random numbers that forward() draws", layer) for other in seeds),
        (setting, "what differs from call to call, such as the time", "make it an input"),
        (second_call, "an attribute that forward() changes", "keep it in a buffer"),
        (replace(setting, training=not setting.training), "the train or eval mode it was traced in", layer),
    ]
    places = ((_first_difference(source, traced, other), what, remedy) for other, what, remedy in causes)
    place, what, remedy = next((found for found in places if found[0]), (source.place, *causes[0][1:]))
    raise TraceError(place, f"torch.fx freezes {what}", remedy)


def _changed_attributes(before: nn.Module, after: nn.Module) -> tuple[tuple[str, str, Any], ...]:
    """(module path, name, new value) of the plain attributes that one call of forward() changes."""
    return tuple(
        (path, name, value)
        for path, module in before.named_modules()
        for name, value in vars(after.get_submodule(path)).items()
        if isinstance(value, bool | int | float | str) and vars(module).get(name) != value
    )


def _first_difference(source: Source, traced: Trace, setting: _Setting) -> str:
    """The user's line where a trace in another setting leaves the graph; empty when it is the same graph."""
    other, _ = _traced(source, setting)
    for node, twin in itertools.zip_longest(traced.graph.nodes, other.graph.nodes):
        if (
            node is None
            or twin is None
            or _calls(node) != _calls(twin)
            or (
                node.op == "get_attr"
                and _changed(attribute(traced.root, node.target), attribute(other.root, twin.target))
            )
        ):
            return _odd_line(source, (node, traced.graph), (twin, other.graph))
    return ""


def _odd_line(source: Source, *sides: tuple[fx.Node | None, fx.Graph]) -> str:
    """The line of the node that the other graph has no line of; else any of the two."""
    (node, graph), (twin, other) = sides
    lines = [node_source(one, source.root) if one is not None else "" for one in (node, twin)]
    elsewhere = [{node_source(one, source.root) for one in nodes.nodes} for nodes in (other, graph)]
    odd = [line for line, known in zip(lines, elsewhere, strict=True) if line not in known]
    return next(filter(None, (*odd, *lines)), source.place)


def _calls(node: fx.Node) -> tuple[object, ...]:
    """What a node calls on what, in a form that equals another trace's."""
    return node.op, str(node.target) if isinstance(node.target, str) else node.target, str(node.args), str(node.kwargs)


def _changed(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or one is other or one.is_meta:  # on meta there is nothing to compare
        return False
    return not torch.equal(one, other)


def attribute(root: nn.Module, target: object) -> Any:
    """What a get_attr node's dotted target reaches."""
    *path, last = str(target).split(".")
    return getattr(root.get_submodule(".".join(path)), last)


def copy_sharing_parameters(module: nn.Module) -> nn.Module:
    """A deep copy with modules and buffers of its own but the same parameters."""
    return copied(module, {id(parameter): parameter for parameter in module.parameters()})


def _observe_eagerly(source: Source) -> list[tuple[_Step, Observation]]:
    """A training step at batch 2 and an eval forward at batch 3, or both at the example's batch if it takes no other.

    The user's own mistakes show here, before any front-end can stumble over them.
    """
    steps = (_Step(2, training=True), _Step(3, training=False))
    try:
        return [(step, observe(source.module, source, batch=step.batch, training=step.training)) for step in steps]
    except Exception as error:
        own = [_Step(source.call.batch_size, training=step.training) for step in steps]
        lacks_targets = source.targets is None and _ran(source.hooks.loss_fn, error)
        remedy = "define example_targets(): loss_fn was given None" if lacks_targets else RUN_IT
        with user_code(source.place, "one training step on the example inputs", source.root, remedy):
            return [(step, observe(source.module, source, batch=step.batch, training=step.training)) for step in own]


def _ran(function: Callable[..., Any] | None, error: Exception) -> bool:
    """Whether `error` came out of a call of `function`."""
    code = getattr(function, "__code__", None)
    return any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__))


def _refusal(source: Source, error: Exception) -> TraceError:
    place = user_line(error, source.root) or _any_line(error) or source.place
    first = first_line(error)
    cause = first.partition(". See the torch.fx docs")[0].partition(". This can be attempted")[0]
    if "inputs to control flow" in first:
        cause = f"the branch `{_code_at(source, place)}` depends on a tensor or its size"
        remedy = "use torch.where, or decide it outside forward()"
    elif isinstance(error, TypeError):
        remedy = "replace Python arithmetic on tensors or sizes there by torch functions"
    else:
        remedy = "rewrite that line in torch operations"
    return TraceError(place, f"torch.fx can't trace this: {cause}", remedy)


def _any_line(error: Exception) -> str:
    torch_folder = Path(torch.__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if not path.is_relative_to(torch_folder) and not path.is_relative_to(Path(__file__).resolve().parent):
            return f"{path.name}:{frame.lineno}" if "stanza_compiler" not in path.parts else ""
    return ""


def _code_at(source: Source, place: str) -> str:
    file, _, line = place.rpartition(":")
    text = linecache.getline(str(source.root / file), int(line)) if line.isdigit() else ""
    return text.strip().removesuffix(":") or place


def _keep_placeholder_names(graph: fx.Graph, call: Call) -> None:
    """fx may rename a placeholder that looks like a builtin; generated code calls it as the call does."""
    for node, leaf in zip([node for node in graph.nodes if node.op == "placeholder"], call.leaves, strict=True):
        node.target = leaf.name


def _op_names(graph: fx.Graph) -> dict[fx.Node, str]:
    calls: Counter[str] = Counter()
    names = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            name = str(node.target)
        elif node.op in ("call_module", "call_function", "call_method"):
            name = str(node.target) if node.op == "call_module" else node.name
        else:
            continue
        calls[name] += 1
        names[node] = name if calls[name] == 1 else f"{name}#{calls[name]}"
    return names


def _compare(source: Source, traced: Trace, expected: list[tuple[_Step, Observation]]) -> None:
    """Raise TraceError unless the graph equals the eager model."""
    for step, observation in expected:
        mode = f"at batch {step.batch} in {'train' if step.training else 'eval'} mode"
        try:
            actual = observe(traced.root, source, batch=step.batch, training=step.training, run=traced.run)
        except Exception as error:
            what = f"the graph traced by torch.fx fails {mode}: {type(error).__name__}: {first_line(error)}"
            raise TraceError(
                user_line(error, source.root) or source.place, what, "rewrite that line in torch functions"
            ) from error
        first = difference(observation, actual).first
        if first:
            loss = first_loss(source, {node_source(node, source.root) for node in traced.names} - {""})
            place, cause = (loss.line, loss.cause) if loss else (source.place, "the graph of torch.fx is not the model")
            raise TraceError(place, f"{cause}: {mode} {first}", "rewrite it in torch functions that act on every call")
