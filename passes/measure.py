"""How long each op takes on this machine."""

import copy
import dataclasses
import statistics
import time
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from stanza_compiler.loader import Source
from stanza_compiler.opgraph import OpGraph
from stanza_compiler.traced import Interpreter, Trace, cut_off

REPEATS = 3


def measure(source: Source, traced: Trace, graph: OpGraph) -> OpGraph:
    """The graph with forward_s and backward_s of every op: the median of a few runs at the example's batch.

    Everything runs on a copy, on a GPU when there is one: the model, its mode, gradients, buffers and random state
    stay as they were.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    root = copy.deepcopy(traced.root).to(device)
    root.training = True
    args, kwargs = source.call.arguments()
    examples = [leaf.to(device) for leaf in source.call.tensors(args, kwargs)]
    timer = _Timer(traced, root, device)
    with torch.random.fork_rng():
        for _ in range(REPEATS + 1):
            timer.run(*examples)
    times = {traced.names[node]: rows[1:] for node, rows in timer.times.items()}  # the first run warms caches up
    ops = tuple(
        dataclasses.replace(
            op,
            forward_s=statistics.median(forward for forward, _ in times[op.name]),
            backward_s=statistics.median(backward for _, backward in times[op.name]),
        )
        for op in graph.ops
    )
    return dataclasses.replace(graph, ops=ops)


class _Timer(Interpreter):
    """Times every call, and its backward alone, on tensors cut off from what came before."""

    def __init__(self, traced: Trace, root: nn.Module, device: torch.device) -> None:
        super().__init__(traced, root)
        self.device = device
        self.times: dict[fx.Node, list[tuple[float, float]]] = {}

    def leave_out(self, node: fx.Node) -> None:
        self.times.setdefault(node, []).append((0.0, 0.0))

    def run_call(self, node: fx.Node) -> Any:
        if node.op in ("placeholder", "get_attr", "output"):
            return super().run_call(node)
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        args, kwargs = cut_off((args, kwargs))
        start = self._now()
        value = getattr(self, node.op)(node.target, args, kwargs)
        forward = self._now() - start
        heads = [
            leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None
        ]
        start = self._now()
        if heads:
            torch.autograd.backward(heads, [torch.ones_like(head) for head in heads])
        self.times.setdefault(node, []).append((forward, self._now() - start if heads else 0.0))
        return value

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()
