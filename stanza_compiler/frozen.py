"""What tracing froze that every call of the model would decide anew."""

import itertools
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn

from stanza_compiler.comparison import preserved, seeded
from stanza_compiler.errors import TraceError
from stanza_compiler.loader import Source
from stanza_compiler.one_mode import OneMode, Setting, trace_once
from stanza_compiler.sources import node_source
from stanza_compiler.traced import TOOLS, FrontEnd, attribute, copy_sharing_parameters


def forbid_random(source: Source, setting: Setting, training: OneMode, evaluation: OneMode) -> None:
    """Raise TraceError where other random numbers or a second call would give another graph.

    Tracing keeps what Python made of them; small effects would pass a comparison.
    """
    tool = TOOLS[setting.front_end]
    layer = "use torch's random functions" if tool == "torch.export" else "use a torch.nn module such as nn.Dropout"
    for one in (training,) if evaluation is training else (training, evaluation):
        mode = replace(setting, training=one is training)
        for seed in range(1, 9) if one.drew else ():
            if found := _first_difference(source, one, replace(mode, seed=seed)):
                what = f"{tool} freezes random numbers that forward() draws"
                raise TraceError(found[0], what, layer, module=found[1])
        if one.drew:
            forbid_unsteady(source, mode, one)
            raise TraceError(source.place, f"{tool} freezes random numbers that forward() draws", layer)
        attributes = _changed_attributes(source, setting.front_end, one)
        if attributes and (found := _first_difference(source, one, replace(mode, attributes=attributes))):
            what = f"{tool} freezes an attribute that forward() changes"
            raise TraceError(found[0], what, "keep it in a buffer", module=found[1])


def forbid_unsteady(source: Source, setting: Setting, one: OneMode) -> None:
    """Raise TraceError where tracing in the same setting once more gives another graph."""
    if found := _first_difference(source, one, setting):
        what = f"{TOOLS[setting.front_end]} freezes what differs from call to call, such as the time"
        raise TraceError(found[0], what, "make it an input", module=found[1])


def _changed_attributes(source: Source, front_end: FrontEnd, one: OneMode) -> tuple[tuple[str, str, Any], ...]:
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


def _first_difference(source: Source, one: OneMode, setting: Setting) -> tuple[str, str] | None:
    """The user's line, and its module, where a trace in another setting leaves the graph; None for the same graph."""
    other = trace_once(source, setting)
    graph, twins = one.traced.graph, other.traced.graph
    for node, twin in itertools.zip_longest(graph.nodes, twins.nodes):
        if (
            node is None
            or twin is None
            or _calls(node) != _calls(twin)
            or (node.op == "get_attr" and changed(attribute(one.root, node.target), attribute(other.root, twin.target)))
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


def changed(one: Any, other: Any) -> bool:
    """Whether what a graph reads is a tensor of other values than in another graph."""
    return isinstance(one, torch.Tensor) and one is not other and not _equal(one, other)
