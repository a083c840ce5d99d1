"""What modules that are kept whole do, observed by running them on data."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from stanza_compiler.aten_calls import AtenCalls, tensors_in
from stanza_compiler.loader import Source
from stanza_compiler.traced import Interpreter, Trace, cut_off


@dataclass(frozen=True, slots=True)
class OpaqueCall:
    """One call: what it gave back, and what it did in aten calls at this batch size."""

    value: Any
    forward_flops: int
    backward_flops: int
    uncounted: tuple[str, ...]
    is_random: bool


def opaque_calls(source: Source, traced: Trace, batch: int) -> dict[fx.Node, OpaqueCall]:
    """Every call of an opaque module in a training step on `batch` of the example's items, on a copy of the model."""
    if not traced.opaque:
        return {}
    root = copy.deepcopy(traced.root)
    root.training = True
    runner = _Runner(traced, root)
    with torch.random.fork_rng(), torch.enable_grad():
        args, kwargs = source.call.arguments(batch)
        runner.run(*source.call.tensors(args, kwargs))
    return runner.calls


class _Runner(Interpreter):
    def __init__(self, traced: Trace, root: nn.Module) -> None:
        super().__init__(traced, root)
        self.calls: dict[fx.Node, OpaqueCall] = {}

    def run_call(self, node: fx.Node) -> Any:
        if node.op != "call_module" or node.target not in self.traced.opaque:
            return super().run_call(node)
        args, kwargs = cut_off(self.fetch_args_kwargs_from_env(node))
        dispatch = AtenCalls()
        with dispatch:
            value = self.call_module(str(node.target), args, kwargs)
            forward, uncounted, is_random = dispatch.flops, tuple(dict.fromkeys(dispatch.uncounted)), dispatch.is_random
            dispatch.reset()
            heads = [tensor for tensor in tensors_in(value) if tensor.grad_fn is not None]
            if heads:
                torch.autograd.backward(heads, [torch.ones_like(head) for head in heads])
        value = pytree.tree_map_only(torch.Tensor, _again, value)
        self.calls[node] = OpaqueCall(value, forward, dispatch.flops, uncounted, is_random)
        return value


def _again(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, whose graph is used up, as the start of a new one."""
    return tensor.detach().requires_grad_(tensor.requires_grad)
