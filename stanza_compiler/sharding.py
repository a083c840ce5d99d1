"""Whether hosts can share an FC part by columns: a chain of Linear layers with pointwise ops between them."""

from collections.abc import Iterator

from stanza_compiler.cuts import Cuts
from stanza_compiler.dataflow import tensor_reads, tensors
from stanza_compiler.opgraph import Op, OpGraph, Shardable
from stanza_compiler.plan import Sharding

# More layers than that in a row are a body, which every rank had better train.
MOST_LAYERS = 6


def sharding_of(graph: OpGraph, shardable: Shardable, fc_ops: frozenset[str]) -> Sharding:
    """The layers that the hosts of `fc_ops` can share, or what forbids it."""
    why_not = shardable.why_not or _why_no_chain(graph, shardable, fc_ops)
    layers = [op for op in graph.ops if op.name in fc_ops and op.name in shardable.linears]
    return Sharding({} if why_not else {op.name: _width(op) for op in layers}, why_not)


def shardable_cuts(graph: OpGraph, shardable: Shardable, cuts: Cuts) -> Iterator[int]:
    """The groups of every legal cut whose FC part hosts can share, the shortest chain first."""
    if shardable.why_not:
        return
    placed = [op for op in graph.ops if op.name in cuts.group]
    chain: set[str] = set()
    layers = 0
    for op in reversed(placed):
        layers += op.name in shardable.linears
        if layers > MOST_LAYERS or op.name not in shardable.linears | shardable.pointwise | shardable.stateless:
            return
        chain.add(op.name)
        groups = sum(1 << number for number in {cuts.group[name] for name in chain})
        fc_ops = cuts.ops(groups)
        if fc_ops == chain and cuts.is_legal(groups) and not _why_no_chain(graph, shardable, fc_ops):
            yield groups


def _why_no_chain(graph: OpGraph, shardable: Shardable, fc_ops: frozenset[str]) -> str:
    chain = [op for op in graph.ops if op.name in fc_ops and not op.is_size]
    is_split = False
    for op in chain:
        if op.name in shardable.linears:
            is_split = True
        elif op.name in shardable.pointwise or (not is_split and op.name in shardable.stateless):
            continue
        else:
            return f"{_called(op)} is no Linear layer or pointwise op"
    if not is_split:
        return "it has no Linear layer"
    crossing = [tensor.value for tensor in tensors(graph) if tensor.crosses(fc_ops)]
    if len(crossing) != 1:
        return f"it takes {', '.join(value.name for value in crossing)}, and hosts share a chain that takes one tensor"
    if crossing[0].kind != "batched" or crossing[0].batch_axis != 0:
        return f"what it takes, {crossing[0].name}, has no batch on axis 0"
    reads = tensor_reads(graph)
    before = crossing[0].name
    for op in chain:
        if reads[op.name] != (before,):
            return (
                f"{_called(op)} reads {', '.join(reads[op.name])}, and hosts share a chain, each op of which reads one"
            )
        before = op.name
    return "" if graph.outputs == (before,) else f"the model's output is not that of its last op, {before}"


def _called(op: Op) -> str:
    where = f", {op.source}" if op.source else ""
    return f"{op.name} ({op.kind}{where})"


def _width(op: Op) -> int:
    assert op.output is not None
    return op.output.shape[-1]
