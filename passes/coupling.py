"""Where the samples of a batch influence each other."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from stanza_compiler.call import Call, Leaf
from stanza_compiler.comparison import preserved, resized_targets
from stanza_compiler.loader import Source
from stanza_compiler.opgraph import Op, OpGraph
from stanza_compiler.runtime.loss import Loss, measure
from stanza_compiler.traced import Interpreter, Trace

WHOLE, FIRST = 3, 1


@dataclass(frozen=True, slots=True)
class Coupling:
    """`ops` whose rows depend on other rows, `reason` why one host must see the whole batch (empty: it need not).

    `together` are ops that number the samples, such as torch.arange(batch), each with those that use the numbers: on
    one side of the cut they count that side's own samples.
    """

    ops: tuple[str, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = ()


def coupling(source: Source, traced: Trace, graph: OpGraph) -> Coupling:
    """Evaluate model and loss, in eval mode, on one batch whole and in two unequal parts; name what doesn't add up.

    BatchNorm's use of batch statistics in train mode is not looked at here: it is reported, not refused.
    """
    if not any(leaf.batch_axis is not None for leaf in source.call.leaves) or source.call.batch_size < 2:
        return Coupling(notes=("whether samples influence each other was not tested: the example holds fewer than 2",))
    spans = ((0, WHOLE), (0, FIRST), (FIRST, WHOLE))
    call = replace(source.call, leaves=tuple(map(_distinct, source.call.leaves)))
    try:
        with preserved(traced.root), torch.no_grad():
            traced.root.eval()
            whole, first, second = (_Recorder(traced, call, start, stop) for start, stop in spans)
    except Exception as error:
        cause = f"the model takes no batch of {FIRST} or {WHOLE} ({type(error).__name__})"
        return Coupling(notes=(f"whether samples influence each other was not tested: {cause}",))
    nodes = {name: node for node, name in traced.names.items()}
    odd = {
        op.name
        for op in graph.ops
        if (axis := _batch_axis(op)) is not None
        and nodes[op.name] in whole.values  # else it runs in train mode alone
        and not _close(
            torch.cat([first.values[nodes[op.name]], second.values[nodes[op.name]]], axis),
            whole.values[nodes[op.name]],
        )
    }
    readers: dict[str, list[Op]] = {}
    for op in graph.ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op)
    data = _data(graph)
    coupled: set[str] = set()
    for op in reversed(graph.ops):
        spreads = (reader.name in coupled or _batch_axis(reader) is None for reader in readers.get(op.name, ()))
        # What is made of data mixes samples, even where this batch doesn't show it later; mere numbers may be harmless.
        if op.name in odd and (op.name in data or op.name in graph.outputs or any(spreads)):
            coupled.add(op.name)
    together = tuple(
        (op.name, *(reader.name for reader in readers.get(op.name, ()))) for op in graph.ops if op.name in odd - coupled
    )
    if coupled:
        starts = [op.name for op in graph.ops if op.name in coupled]
        return replace(_coupled(graph, starts, ""), together=together)
    if not _losses_add_up(source, whole.result, first.result, second.result):
        return replace(_coupled(graph, [], "the loss is not a mean over samples"), together=together)
    return Coupling(together=together)


def _batch_axis(op: Op) -> int | None:
    """Where an op's value holds the samples; None where it holds them nowhere alone."""
    return op.output.batch_axis if op.output is not None and op.output.kind == "batched" else None


def _data(graph: OpGraph) -> set[str]:
    """Inputs, random numbers, and all that is made of them other than by asking for sizes."""
    data = {value.name for value in graph.inputs}
    for op in graph.ops:
        if not op.is_size and (op.is_random or not data.isdisjoint(op.inputs)):
            data.add(op.name)
    return data


def _distinct(leaf: Leaf) -> Leaf:
    """The example with samples that differ: between equal ones most couplings don't show."""
    example, axis = leaf.example, leaf.batch_axis
    if axis is None or not example.is_floating_point() or not bool((example == example.narrow(axis, 0, 1)).all()):
        return leaf
    noise = torch.rand(example.shape, generator=torch.Generator().manual_seed(0)).to(example)
    return replace(leaf, example=example.detach() + noise)


def _coupled(graph: OpGraph, ops: list[str], reason: str) -> Coupling:
    """`ops`, or the outputs when there are none, with the statistics of the batch that they are made from."""
    found = {*ops, *_statistics(graph, [name for op in ops for name in graph.op[op].inputs] or list(graph.outputs))}
    names = tuple(op.name for op in graph.ops if op.name in found)
    if not reason:
        first = graph.op[names[0]]
        reason = f"{first.name}{f', {first.source},' if first.source else ''} mixes the samples of a batch"
    return Coupling(names, reason=reason)


def _statistics(graph: OpGraph, names: list[str]) -> set[str]:
    """Those of `names`, and of what they are made from, that depend on the batch but have no axis for it."""
    found: set[str] = set()
    while names:
        op = graph.op.get(names.pop())
        if op is None or op.name in found or op.is_size or (op.output is not None and op.output.kind != "per-rank"):
            continue
        found.add(op.name)
        names += op.inputs
    return found


class _Recorder(Interpreter):
    """Runs one part of the batch and keeps every node's tensor."""

    def __init__(self, traced: Trace, call: Call, start: int, stop: int) -> None:
        super().__init__(traced, keeps_values=True)
        self.values: dict[fx.Node, torch.Tensor] = {}
        args, kwargs = call.part(WHOLE, start, stop)
        torch.manual_seed(0)
        self.result = self.run(*call.tensors(args, kwargs))

    def run_call(self, node: fx.Node) -> Any:
        value = super().run_call(node)
        if isinstance(value, torch.Tensor):
            self.values[node] = value.clone()  # an in-place op may overwrite it
        return value


def _losses_add_up(source: Source, whole: Any, first: Any, second: Any) -> bool:
    targets = resized_targets(source.targets, WHOLE)

    def cut(start: int, stop: int) -> Any:
        return pytree.tree_map(
            lambda leaf: leaf[start:stop] if isinstance(leaf, torch.Tensor) and leaf.dim() else leaf, targets
        )

    def loss(output: Any, start: int, stop: int) -> Loss:
        return measure(source.hooks, output, cut(start, stop), samples=stop - start)

    parts = loss(first, 0, FIRST) + loss(second, FIRST, WHOLE)
    together = loss(whole, 0, WHOLE)
    return _close(parts.total / parts.count, together.total / together.count)


def _close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(actual, expected)
    scale = expected.abs().max().item() if expected.numel() else 0.0
    return torch.allclose(actual, expected, rtol=1e-3, atol=1e-4 * scale + 1e-7, equal_nan=True)
