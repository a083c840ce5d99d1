"""The first front-end: torch.fx, with torch.nn modules as leaves."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from stanza_compiler.call import Call
from stanza_compiler.modes import Traced
from stanza_compiler.sources import record_line
from stanza_compiler.structure import Structure, take_apart


def symbolic_trace(root: nn.Module, call: Call, *, leaves: frozenset[str]) -> Traced:
    """Trace `root` in the mode that it is in, the modules at the paths `leaves` as single calls.

    Raises whatever torch.fx and the model raise.
    """
    tracer = _Tracer(call, leaves)
    graph = tracer.trace(root)
    _keep_placeholder_names(graph, call)
    return Traced(graph, tracer.results[-1])


class _Tracer(fx.Tracer):
    """symbolic_trace with torch.nn modules as leaves and the example call's own argument structure.

    Only the call's tensors become placeholders; everything else stays the value that the example gave, so that
    defaults, keywords and containers mean what they mean in eager mode.
    """

    def __init__(self, call: Call, leaves: frozenset[str]) -> None:
        super().__init__(autowrap_modules=(math,))
        self.proxy_buffer_attributes = True
        self.call, self.leaves = call, leaves
        self.results: list[Structure] = []

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        if node.op not in ("placeholder", "output"):
            record_line(node)
        return node

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self.leaves

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        proxies = [self.create_proxy("placeholder", leaf.name, (), {}) for leaf in self.call.leaves]
        args, kwargs = self.call.rebuild(proxies)

        def called(root: nn.Module, *_: Any) -> Any:
            output = root.forward(*args, **kwargs)  # root_fn is its class's
            values, result = take_apart(output, lambda item: isinstance(item, fx.Proxy | torch.Tensor))
            self.results.append(result)
            return tuple(values)

        return called, [self.root, *proxies]


def _keep_placeholder_names(graph: fx.Graph, call: Call) -> None:
    """fx may rename a placeholder that looks like a builtin; generated code calls it as the call does."""
    for node, leaf in zip([node for node in graph.nodes if node.op == "placeholder"], call.leaves, strict=True):
        node.target = leaf.name
