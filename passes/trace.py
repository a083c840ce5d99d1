"""From a module to a graph of its calls that is equal to it."""

import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import fx, nn

from stanza_compiler.comparison import Observation, difference, observe, repeats_itself
from stanza_compiler.constructors import is_leaf
from stanza_compiler.eager_lines import first_loss
from stanza_compiler.errors import TraceError, UsageError
from stanza_compiler.frozen import changed, forbid_random, forbid_unsteady
from stanza_compiler.loader import RUN_IT, Source, first_line, user_code, user_line
from stanza_compiler.modes import follows_mode, merge
from stanza_compiler.one_mode import OneMode, Setting, trace_once
from stanza_compiler.quantities import did_you_mean
from stanza_compiler.refusals import joined
from stanza_compiler.sources import node_source, short_path
from stanza_compiler.traced import TOOLS, FrontEnd, Trace, attribute


@dataclass(frozen=True, slots=True)
class _Step:
    batch: int
    training: bool


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
    raise joined(first, second) if second is not first else first


def _believed(
    source: Source, front_end: FrontEnd, expected: list[tuple[_Step, Observation]], opaque: dict[str, str]
) -> Trace:
    """The trace of both modes by one front-end, once nothing in it is frozen and it equals the eager model."""
    if front_end == "fx":
        _forbid_hooks(source)
    elif opaque:
        raise TraceError(source.place, "torch.export keeps no module whole", "leave out --leaf or --trace export")
    layers = {path for path, module in source.module.named_modules() if path and is_leaf(module)}
    setting = Setting(front_end, training=True, leaves=frozenset(layers | opaque.keys()))
    training = trace_once(source, setting)
    # A graph that is to be believed is made twice in any case: what differs then, such as the time, Python froze.
    twice = training.reads_mode or bool(expected)
    evaluation = trace_once(source, replace(setting, training=False)) if twice else training
    forbid_random(source, setting, training, evaluation)
    _share_attributes(training.root, evaluation)
    merged = merge(training.traced, evaluation.traced)
    if follows_mode(merged.graph):
        forbid_unsteady(source, setting, training)
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


def _share_attributes(root: nn.Module, other: OneMode) -> None:
    """Let `root` hold what the graph of another copy reads; a constant of another value gets another name."""
    for node in other.traced.graph.nodes:
        if node.op != "get_attr":
            continue
        value, name = attribute(other.root, node.target), str(node.target)
        own = attribute(root, name) if _has(root, name) else value
        if changed(own, value):
            name = f"{name}_in_eval"
        if not _has(root, name):
            path, _, last = name.rpartition(".")
            setattr(root.get_submodule(path), last, value)
        node.target = name


def _has(root: nn.Module, name: str) -> bool:
    *path, last = name.split(".")
    return hasattr(root.get_submodule(".".join(path)), last)


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
    tool = TOOLS[traced.front_end]
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
