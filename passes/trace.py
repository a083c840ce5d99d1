"""From a module to a graph of its calls that is equal to it."""

import itertools
import linecache
import random
import traceback
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import fx, nn

from stanza_compiler.comparison import Observation, difference, observe, preserved, repeats_itself, seeded
from stanza_compiler.constructors import is_leaf
from stanza_compiler.eager_lines import first_loss
from stanza_compiler.errors import TraceError, UsageError
from stanza_compiler.loader import RUN_IT, Source, first_line, user_code, user_line
from stanza_compiler.modes import Traced, follows_mode, merge
from stanza_compiler.quantities import did_you_mean
from stanza_compiler.sources import node_source, short_path
from stanza_compiler.trace_export import BatchError, export
from stanza_compiler.trace_fx import symbolic_trace
from stanza_compiler.traced import Trace, attribute, copy_sharing_parameters

FrontEnd = Literal["fx", "export"]
_TOOLS: dict[FrontEnd, str] = {"fx": "torch.fx", "export": "torch.export"}


@dataclass(frozen=True, slots=True)
class _Step:
    batch: int
    training: bool


@dataclass(frozen=True, slots=True)
class _Setting:
    """Under what a model is traced; `attributes` are (module path, name, value) set beforehand."""

    front_end: FrontEnd
    training: bool
    seed: int = 0
    attributes: tuple[tuple[str, str, Any], ...] = ()
    leaves: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _OneMode:
    """A trace in one mode, the copy of the model that it is of, and whether random numbers were drawn meanwhile."""

    root: nn.Module
    traced: Traced
    drew: bool


def trace(
    source: Source,
    *,
    front_end: Literal["auto", "fx", "export"] = "auto",
    verify: bool = True,
    leaves: tuple[str, ...] = (),
) -> Trace:
    """Trace a copy of the model; with `verify`, believe the graph only once it equals the eager model.

    `auto` takes torch.fx and, where that refuses or is not equal, torch.export; where one submodule is to blame for
    both, torch.fx keeps that submodule whole, as it does those of `leaves`. Equal means: outputs, loss and gradients in
    train mode, outputs in eval mode, at two batch sizes. Raises TraceError with the user's line and the cause.
    """
    opaque = dict.fromkeys(leaves, "--leaf asks for it")
    _forbid_unknown(source, opaque)
    expected = _observe_eagerly(source) if verify else []
    if front_end == "auto":
        traced = _by_any(source, expected, opaque)
    else:
        traced = _believed(source, front_end, expected, opaque)
    if verify and not repeats_itself(source):
        what = "a second call of forward() gives another output than the first: it keeps something in an attribute"
        raise TraceError(source.place, what, "keep it in a buffer")
    return traced


def _forbid_unknown(source: Source, leaves: Iterable[str]) -> None:
    modules = [path for path, _ in source.module.named_modules() if path]
    for path in leaves:
        if path not in modules:
            remedy = did_you_mean(path, modules)
            raise UsageError("--leaf", f"the model has no submodule {path}", f"{remedy}give its path, such as layer1.0")


def _by_any(source: Source, expected: list[tuple[_Step, Observation]], opaque: dict[str, str]) -> Trace:
    """By torch.fx, else by torch.export, else by torch.fx with the submodule that is to blame kept whole."""
    try:
        return _believed(source, "fx", expected, opaque)
    except TraceError as error:
        first = error
    why = f"{first.place}: {first.what}"
    if opaque:
        second = first
    else:
        try:
            return replace(_believed(source, "export", expected, opaque), why=why)
        except TraceError as error:
            second = error
    blamed = first.module or second.module
    if blamed and not any(f"{blamed}.".startswith(f"{path}.") for path in opaque):
        try:
            return _by_any(source, expected, {**opaque, blamed: why})
        except TraceError:  # what went wrong first tells more
            pass
    raise _joined(first, second) if second is not first else first


def _joined(first: TraceError, second: TraceError) -> TraceError:
    """What both front-ends say, in one error at the place of the first that knows a line."""
    if ":" not in first.place and ":" in second.place:
        first, second = second, first
    where = "" if second.place == first.place else f" at {second.place}"
    return TraceError(first.place, f"{first.what} ({second.what}{where})", first.remedy)


def _believed(
    source: Source, front_end: FrontEnd, expected: list[tuple[_Step, Observation]], opaque: dict[str, str]
) -> Trace:
    """The trace of both modes by one front-end, once nothing in it is frozen and it equals the eager model."""
    if front_end == "fx":
        _forbid_hooks(source)
    elif opaque:
        raise TraceError(source.place, "torch.export keeps no module whole", "leave out --leaf or --trace export")
    layers = {path for path, module in source.module.named_modules() if path and is_leaf(module)}
    setting = _Setting(front_end, training=True, leaves=frozenset(layers | opaque.keys()))
    training = _traced(source, setting)
    evaluation = _traced(source, replace(setting, training=False))
    _forbid_random(source, setting, training, evaluation)
    _share_attributes(training.root, evaluation)
    merged = merge(training.traced, evaluation.traced)
    if follows_mode(merged.graph):
        _forbid_unsteady(source, setting, training)
    traced = Trace(training.root, merged.graph, _op_names(merged.graph), merged.result, front_end, opaque=opaque)
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


def _traced(source: Source, setting: _Setting) -> _OneMode:
    """One trace of a copy of the model in one mode."""
    root = copy_sharing_parameters(source.module)
    modes = [module.training for module in root.modules()]
    root.train(setting.training)
    for path, name, value in setting.attributes:
        vars(root.get_submodule(path))[name] = value
    versions = {name: value._version for name, value in _held(root) if isinstance(value, torch.Tensor)}
    with seeded(setting.seed):
        before = _random_state()
        try:
            traced = _by_front_end(source, setting, root)
        except TraceError:
            raise
        except Exception as error:
            raise _refusal(source, setting.front_end, error, module=_module_at(error, root)) from error
        drew = _random_state() != before
    for module, mode in zip(root.modules(), modes, strict=True):
        module.training = mode
    _forbid_lost_writes(source, root, versions)
    return _OneMode(root, traced, drew)


def _module_at(error: Exception, root: nn.Module) -> str:
    """The path of the submodule in whose own code `error` arose; empty for the model itself and unknown ones."""
    paths = {id(module): path for path, module in root.named_modules()}
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    owners = (paths.get(id(frame.f_locals.get("self"))) for frame in reversed(frames))
    return next((path for path in owners if path is not None), "")


def _by_front_end(source: Source, setting: _Setting, root: nn.Module) -> Traced:
    if setting.front_end == "fx":
        return symbolic_trace(root, source.call, leaves=setting.leaves)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch.export warns of, the comparison with the eager model decides
        exported = export(root, source.call, leaves=setting.leaves)
    for name, constant in exported.constants.items():
        setattr(root, name, constant)
    return Traced(exported.graph, exported.result)


def _share_attributes(root: nn.Module, other: _OneMode) -> None:
    """Let `root` hold what the graph of another copy reads; a constant of another value gets another name."""
    for node in other.traced.graph.nodes:
        if node.op != "get_attr":
            continue
        value, name = attribute(other.root, node.target), str(node.target)
        own = attribute(root, name) if _has(root, name) else value
        if _changed(own, value):
            name = f"{name.replace('.', '_')}_in_eval"
        if not _has(root, name):
            setattr(root, name, value)
        node.target = name


def _has(root: nn.Module, name: str) -> bool:
    *path, last = name.split(".")
    return hasattr(root.get_submodule(".".join(path)), last)


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


def _forbid_random(source: Source, setting: _Setting, training: _OneMode, evaluation: _OneMode) -> None:
    """Raise TraceError where other random numbers or a second call would give another graph.

    Tracing keeps what Python made of them; small effects would pass a comparison.
    """
    tool = _TOOLS[setting.front_end]
    layer = "use torch's random functions" if tool == "torch.export" else "use a torch.nn module such as nn.Dropout"
    for one in (training, evaluation):
        mode = replace(setting, training=one is training)
        for seed in range(1, 9) if one.drew else ():
            if found := _first_difference(source, one, replace(mode, seed=seed)):
                what = f"{tool} freezes random numbers that forward() draws"
                raise TraceError(found[0], what, layer, module=found[1])
        if one.drew:
            _forbid_unsteady(source, mode, one)
            raise TraceError(source.place, f"{tool} freezes random numbers that forward() draws", layer)
        attributes = _changed_attributes(source, setting.front_end, one)
        if attributes and (found := _first_difference(source, one, replace(mode, attributes=attributes))):
            what = f"{tool} freezes an attribute that forward() changes"
            raise TraceError(found[0], what, "keep it in a buffer", module=found[1])


def _forbid_unsteady(source: Source, setting: _Setting, one: _OneMode) -> None:
    """Raise TraceError where tracing in the same setting once more gives another graph."""
    if found := _first_difference(source, one, setting):
        what = f"{_TOOLS[setting.front_end]} freezes what differs from call to call, such as the time"
        raise TraceError(found[0], what, "make it an input", module=found[1])


def _changed_attributes(source: Source, front_end: FrontEnd, one: _OneMode) -> tuple[tuple[str, str, Any], ...]:
    """(module path, name, new value) of the plain attributes that one call of forward() changes.

    torch.export undoes such changes: there a call without tracing shows them.
    """
    if front_end == "fx":  # tensors that fx keeps for itself are no change, those of forward() are refused by now
        return tuple(change for change in _changes(source.module, one.root) if not isinstance(change[2], torch.Tensor))
    root = copy_sharing_parameters(source.module)
    if any(parameter.is_meta for parameter in root.parameters()):
        return ()
    args, kwargs = source.call.arguments()
    with preserved(root), seeded(0), torch.no_grad():
        root(*args, **kwargs)
        return _changes(source.module, root)


def _changes(before: nn.Module, after: nn.Module) -> tuple[tuple[str, str, Any], ...]:
    return tuple(
        (path, name, value.copy() if isinstance(value, OrderedDict) else value)
        for path, module in before.named_modules()
        for name, value in vars(after.get_submodule(path)).items()
        if name != "training" and _differs(vars(module).get(name), value)
    )


def _differs(before: Any, after: Any) -> bool:
    """Whether a plain attribute, a number, text, tensor or a module's hooks, is another one after a call."""
    if isinstance(after, OrderedDict):
        return list(before or ()) != list(after)
    if isinstance(after, torch.Tensor):
        return after is not before and not (isinstance(before, torch.Tensor) and _equal(before, after))
    return isinstance(after, bool | int | float | str) and before != after


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and (one.is_meta or other.is_meta or torch.equal(one, other))


def _first_difference(source: Source, one: _OneMode, setting: _Setting) -> tuple[str, str] | None:
    """The user's line, and its module, where a trace in another setting leaves the graph; None for the same graph."""
    other = _traced(source, setting)
    graph, twins = one.traced.graph, other.traced.graph
    for node, twin in itertools.zip_longest(graph.nodes, twins.nodes):
        if (
            node is None
            or twin is None
            or _calls(node) != _calls(twin)
            or (
                node.op == "get_attr" and _changed(attribute(one.root, node.target), attribute(other.root, twin.target))
            )
        ):
            return _odd_line(source, (node, graph), (twin, twins)), _module_of(node or twin)
    return None


def _module_of(node: fx.Node | None) -> str:
    stack = node.meta.get("nn_module_stack") if node is not None else None
    return str(next(iter(reversed(stack.values())))[0]) if stack else ""


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
    return isinstance(one, torch.Tensor) and one is not other and not _equal(one, other)


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


def _refusal(source: Source, front_end: FrontEnd, error: Exception, *, module: str) -> TraceError:
    place = user_line(error, source.root) or _any_line(error) or source.place
    first = first_line(error)
    if front_end == "export":
        return _export_refusal(source, place, error, module)
    cause = first.partition(". See the torch.fx docs")[0].partition(". This can be attempted")[0]
    if "inputs to control flow" in first:
        cause = f"the branch `{_code_at(source, place)}` depends on a tensor or its size"
        remedy = "use torch.where, or decide it outside forward()"
    elif isinstance(error, TypeError):
        remedy = "replace Python arithmetic on tensors or sizes there by torch functions"
    else:
        remedy = "rewrite that line in torch operations"
    return TraceError(place, f"torch.fx can't trace this: {cause}", remedy, module=module)


def _export_refusal(source: Source, place: str, error: Exception, module: str) -> TraceError:
    cause = f"torch.export can't trace this: {type(error).__name__}: {first_line(error)}"
    remedy = "rewrite that line in torch operations"
    if isinstance(error, BatchError):
        cause, remedy = f"torch.export: {error}", "let forward() treat every batch size alike"
    elif "data-dependent" in str(error):
        cause = f"torch.export: the branch `{_code_at(source, place)}` depends on a tensor's values"
        remedy = "use torch.where, or decide it outside forward()"
    return TraceError(place, cause, remedy, module=module)


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
    tool = _TOOLS[traced.front_end]
    for step, observation in expected:
        mode = f"at batch {step.batch} in {'train' if step.training else 'eval'} mode"
        try:
            actual = observe(traced.root, source, batch=step.batch, training=step.training, run=traced.run)
        except Exception as error:
            what = f"the graph traced by {tool} fails {mode}: {type(error).__name__}: {first_line(error)}"
            raise TraceError(
                user_line(error, source.root) or source.place, what, "rewrite that line in torch functions"
            ) from error
        first = difference(observation, actual).first
        if first:
            lines = {node_source(node, source.root) for node in traced.names} - {""}
            loss = first_loss(source, tool, lines)
            place, cause = (loss.line, loss.cause) if loss else (source.place, f"the graph of {tool} is not the model")
            remedy = "rewrite it in torch functions that act on every call"
            raise TraceError(place, f"{cause}: {mode} {first}", remedy, module=loss.module if loss else "")
