"""Two graphs of one model, traced in train and in eval mode, as one graph that follows the mode."""

import difflib
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from stanza_compiler.structure import ByMode, Structure, renumbered
from stanza_compiler.traced import Mode, choose, regions, set_regions

_PLACES = ("placeholder", "get_attr", "output")


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph in one mode with the structure of its output."""

    graph: fx.Graph
    result: Structure


def merge(training: Traced, evaluation: Traced) -> Traced:
    """One graph: calls that both have stand once, a value that differs is chosen by the model's `training` flag.

    Calls that only one mode has are put into a Mode region.
    """
    return _Merge(training, evaluation).merged()


def follows_mode(graph: fx.Graph) -> bool:
    """Whether the modes differ in more than what eval mode switches off: dropout's flags and probabilities."""
    return any(
        (node.target is choose and node.args[2] not in (0, 0.0, None))
        or any(isinstance(region, Mode) for region in regions(node))
        for node in graph.nodes
    )


class _Merge:
    def __init__(self, training: Traced, evaluation: Traced) -> None:
        self.training, self.evaluation = training, evaluation
        self.graph = fx.Graph()
        self.attributes: dict[str, fx.Node] = {}
        self.choices: dict[tuple[Any, Any], fx.Node] = {}
        self.in_training: dict[fx.Node, fx.Node] = {}
        self.otherwise: dict[fx.Node, fx.Node] = {}

    def merged(self) -> Traced:
        own = [node for node in self.training.graph.nodes if node.op == "placeholder"]
        other = [node for node in self.evaluation.graph.nodes if node.op == "placeholder"]
        for node, twin in zip(own, other, strict=True):
            self.in_training[node] = self.otherwise[twin] = self.graph.node_copy(node)
        calls = [node for node in self.training.graph.nodes if node.op not in _PLACES]
        twins = [node for node in self.evaluation.graph.nodes if node.op not in _PLACES]
        for is_shared, start, stop, twin_start, twin_stop in _stretches(calls, twins):
            if is_shared:
                for node, twin in zip(calls[start:stop], twins[twin_start:twin_stop], strict=True):
                    self._share(node, twin)
            else:
                for node in calls[start:stop]:
                    self._copy(node, self.in_training, training=True)
                for twin in twins[twin_start:twin_stop]:
                    self._copy(twin, self.otherwise, training=False)
        return Traced(self.graph, self._return())

    def _share(self, node: fx.Node, twin: fx.Node) -> None:
        args = self._mixed(node.args, twin.args)
        kwargs = self._mixed(node.kwargs, twin.kwargs)
        shared = self.graph.create_node(node.op, node.target, args, kwargs, name=node.name)
        shared.meta.update(node.meta)
        self.in_training[node] = self.otherwise[twin] = shared

    def _copy(self, node: fx.Node, values: dict[fx.Node, fx.Node], *, training: bool) -> None:
        copied = self.graph.node_copy(node, lambda other: self._value(other, values))
        set_regions(copied, (Mode(training), *regions(node)))
        values[node] = copied

    def _value(self, node: fx.Node, values: dict[fx.Node, fx.Node]) -> fx.Node:
        return self._attribute(node) if node.op == "get_attr" else values[node]

    def _attribute(self, node: fx.Node) -> fx.Node:
        target = str(node.target)
        if target not in self.attributes:
            self.attributes[target] = self.graph.node_copy(node)
        return self.attributes[target]

    def _mixed(self, one: Any, other: Any) -> Any:
        """An argument of a shared call: what both have, or a choice by mode."""
        if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
            return {key: self._mixed(one[key], other[key]) for key in one}
        if isinstance(one, tuple | list) and isinstance(other, tuple | list) and len(one) == len(other):
            return type(one)(self._mixed(item, twin) for item, twin in zip(one, other, strict=True))
        if isinstance(one, slice) and isinstance(other, slice):
            parts = [(one.start, other.start), (one.stop, other.stop), (one.step, other.step)]
            return slice(*(self._mixed(*part) for part in parts))
        here = fx.map_arg(one, lambda node: self._value(node, self.in_training))
        there = fx.map_arg(other, lambda node: self._value(node, self.otherwise))
        if type(here) is type(there) and _equal(here, there):
            return here
        return self._chosen(here, there)

    def _chosen(self, here: Any, there: Any) -> fx.Node:
        key = (repr(here), repr(there))
        if key not in self.choices:
            if "training" not in self.attributes:
                self.attributes["training"] = self.graph.get_attr("training")
            flag = self.attributes["training"]
            if here is True and there is False:
                self.choices[key] = flag
            elif here is False and there is True:
                self.choices[key] = self.graph.call_function(operator.not_, (flag,))
            else:
                self.choices[key] = self.graph.call_function(choose, (flag, here, there))
        return self.choices[key]

    def _return(self) -> Structure:
        own = next(iter(reversed(self.training.graph.nodes))).args[0]
        other = next(iter(reversed(self.evaluation.graph.nodes))).args[0]
        if self.training.result == self.evaluation.result:
            self.graph.output(self._mixed(own, other))
            return self.training.result
        values: list[Any] = [self._value(node, self.in_training) for node in own]
        numbers = []
        for node in other:
            value = self._value(node, self.otherwise)
            if value not in values:
                values.append(value)
            numbers.append(values.index(value))
        self.graph.output(tuple(values))
        return ByMode(self.training.result, renumbered(self.evaluation.result, numbers))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float):
        return one == other or (one != one and other != other)
    return bool(one == other)


def _stretches(calls: Sequence[fx.Node], twins: Sequence[fx.Node]) -> list[tuple[bool, int, int, int, int]]:
    """(is the same in both, start, stop, start among twins, stop among twins), in program order."""
    ours, theirs = [_token(node) for node in calls], [_token(node) for node in twins]
    head = 0
    while head < min(len(ours), len(theirs)) and ours[head] == theirs[head]:
        head += 1
    tail = 0
    while tail < min(len(ours), len(theirs)) - head and ours[-1 - tail] == theirs[-1 - tail]:
        tail += 1
    middle, twin_middle = ours[head : len(ours) - tail], theirs[head : len(theirs) - tail]
    found = [(True, 0, head, 0, head)]
    matcher = difflib.SequenceMatcher(None, middle, twin_middle, autojunk=False)
    found += [(kind == "equal", head + a, head + b, head + c, head + d) for kind, a, b, c, d in matcher.get_opcodes()]
    return [*found, (True, len(ours) - tail, len(ours), len(theirs) - tail, len(theirs))]


def _token(node: fx.Node) -> tuple[Any, ...]:
    stack = node.meta.get("nn_module_stack") or {}
    path = next(iter(reversed(stack.values())), ("",))[0]
    target = node.target if isinstance(node.target, str) else repr(node.target)
    return node.op, target, path, len(node.args), tuple(node.kwargs), regions(node)
