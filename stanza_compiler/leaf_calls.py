"""Calls of torch.nn layers in a graph of single operations, put back."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils import _pytree as pytree

from stanza_compiler.traced import regions


@dataclass(frozen=True, slots=True)
class _Named:
    """A tensor of a call: the node that was named so when the call was traced."""

    name: str


@dataclass(frozen=True, slots=True)
class _Input:
    """A tensor of a call that is an input of the whole graph, counted from its end."""

    index: int


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A tensor or number whose maker the tracer doesn't know."""


@dataclass(frozen=True, slots=True)
class LeafCall:
    """One call of a leaf module: the names of the nodes made meanwhile, what it was given and what it gave back."""

    path: str
    made: tuple[str, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


class Recorder:
    """While entered, notes every call of the modules at the paths `leaves` that torch.export traces."""

    def __init__(self, root: nn.Module, leaves: frozenset[str]) -> None:
        self.root, self.leaves = root, leaves
        self.calls: list[LeafCall] = []
        self._open: list[tuple[str, fx.Node, tuple[Any, ...], dict[str, Any]]] = []
        self._inputs: dict[fx.Node, int] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> "Recorder":
        for path, module in self.root.named_modules():
            if path in self.leaves:
                before, after = self._hooks(path)
                self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
                self._handles.append(module.register_forward_hook(after, with_kwargs=True))
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for handle in self._handles:
            handle.remove()

    def _hooks(self, path: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            mode = get_proxy_mode()
            if mode is not None:
                given = pytree.tree_map(self._reference, (args, kwargs))
                self._open.append((path, mode.tracer.graph._root.prev, *given))

        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            mode = get_proxy_mode()
            if mode is None:
                return
            path, before_it, given, named = self._open.pop()
            if not self._open:  # of nested leaves the outermost counts
                made = []
                node = mode.tracer.graph._root.prev
                while node is not before_it:
                    made.append(node.name)
                    node = node.prev
                self.calls.append(
                    LeafCall(path, tuple(reversed(made)), given, named, pytree.tree_map(self._reference, output))
                )

        return before, after

    def _reference(self, value: Any) -> Any:
        """What stands for a value of a call until the graph is done."""
        if not isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool):
            return value
        mode = get_proxy_mode()
        assert mode is not None
        slot = get_proxy_slot(value, mode.tracer, None)
        if slot is None:
            return _Unknown()
        proxy: Any = getattr(slot, "proxy", slot)
        if not isinstance(proxy, fx.Proxy):
            proxy = proxy.force() if hasattr(proxy, "force") else proxy()
        if proxy.node.op != "placeholder":
            return _Named(proxy.node.name)
        if not self._inputs:
            inputs = [node for node in mode.tracer.graph.nodes if node.op == "placeholder"]
            self._inputs = {node: index - len(inputs) for index, node in enumerate(inputs)}
        return _Input(self._inputs[proxy.node])


def _is_reference(value: Any) -> bool:
    return isinstance(value, _Named | _Input | _Unknown)


def put_back(graph: fx.Graph, calls: tuple[LeafCall, ...], nodes: dict[str, fx.Node]) -> set[str]:
    """Replace each call's run of nodes by one call_module, where nothing else reads the middle of it.

    `nodes` finds a node by its name while tracing. Modifies `graph`; gives the paths of layers of which some call stays
    single operations.
    """
    weaver = _Weaver(graph, nodes)
    return {call.path for call in calls if not weaver.put_back(call)}


class _Weaver:
    def __init__(self, graph: fx.Graph, nodes: dict[str, fx.Node]) -> None:
        self.graph = graph
        self.inputs = [node for node in graph.nodes if node.op == "placeholder"]
        alive = set(graph.nodes)
        self.current = {name: node for name, node in nodes.items() if node in alive}
        self.names = {node: name for name, node in self.current.items()}

    def put_back(self, call: LeafCall) -> bool:
        """Whether the call is one node now."""
        made = [self.current[name] for name in call.made if name in self.current]
        try:
            args, kwargs = pytree.tree_map(self._found, (call.args, call.kwargs), is_leaf=_is_reference)
            leaves = pytree.tree_leaves_with_path(call.output, is_leaf=_is_reference)
            outputs = [(path, self._found(leaf)) for path, leaf in leaves if _is_reference(leaf)]
        except LookupError:
            return False
        inner = set(made)
        given_back = {node for _, node in outputs}
        leaks = any(user not in inner for node in inner - given_back for user in node.users)
        if not made or leaks or any(regions(node) != regions(made[0]) for node in made):
            return False
        first = made[0]
        with self.graph.inserting_before(first):
            whole = self.graph.call_module(call.path, tuple(args), dict(kwargs))
            self._describe(whole, first)
            for path, node in outputs:
                if node in inner:  # a layer may give back what it was given
                    self._take_over(node, self._part(whole, path), inner)
        for node in reversed(made):
            self.graph.erase_node(node)
        return True

    def _found(self, value: Any) -> Any:
        match value:
            case _Named(name):
                return self.current[name]
            case _Input(index) if -index <= len(self.inputs):
                return self.inputs[index]
            case _Input() | _Unknown():
                raise LookupError(value)
        return value

    def _part(self, whole: fx.Node, path: tuple[Any, ...]) -> fx.Node:
        part = whole
        for key in path:
            part = self.graph.call_function(operator.getitem, (part, key.idx if hasattr(key, "idx") else key.key))
            self._describe(part, whole)
        return part

    def _describe(self, node: fx.Node, like: fx.Node) -> None:
        node.meta.update({key: value for key, value in like.meta.items() if key != "val"})

    def _take_over(self, node: fx.Node, part: fx.Node, inner: set[fx.Node]) -> None:
        part.meta["val"] = node.meta.get("val")
        node.replace_all_uses_with(part, delete_user_cb=lambda user: user not in inner)
        name = self.names.pop(node)
        self.current[name], self.names[part] = part, name
