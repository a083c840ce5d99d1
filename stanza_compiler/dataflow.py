"""Who really reads each tensor, once arithmetic on sizes is looked through."""

from dataclasses import dataclass

from stanza_compiler.opgraph import OpGraph, Value


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value that may cross the cut: its maker (None for a graph input) and the ops that need it present.

    `is_output`: the model returns it or its loss reads it, so the last segment needs it.
    """

    value: Value
    maker: str | None
    readers: tuple[str, ...]
    is_output: bool

    def crosses(self, fc_ops: frozenset[str]) -> bool:
        """Whether it is made where CONV runs and needed where FC runs, FC standing behind."""
        return self.goes_up(frozenset(), fc_ops)

    def goes_to_front(self, front: frozenset[str]) -> bool:
        """Whether it is an input, which CONV's ranks read, that FC's ops in front of CONV need."""
        return self.maker is None and not front.isdisjoint(self.readers)

    def comes_down(self, front: frozenset[str], back: frozenset[str]) -> bool:
        """Whether FC makes it in front and CONV needs it; what FC needs of it behind stays where it is."""
        if self.maker is None or self.maker not in front:
            return False
        return (self.is_output and not back) or any(name not in front and name not in back for name in self.readers)

    def stays(self, front: frozenset[str], back: frozenset[str]) -> bool:
        """Whether FC makes it in front and needs it behind, where it is already."""
        return self.maker in front and bool(back) and (self.is_output or not back.isdisjoint(self.readers))

    def goes_up(self, front: frozenset[str], back: frozenset[str]) -> bool:
        """Whether CONV has it and FC needs it behind CONV, not having got it in front."""
        if self.maker in front or self.maker in back or not back or self.goes_to_front(front):
            return False
        return self.is_output or not back.isdisjoint(self.readers)


def tensor_reads(graph: OpGraph) -> dict[str, tuple[str, ...]]:
    """For every op that isn't size arithmetic, the inputs and ops it reads, directly or as their sizes."""
    reads = _resolved_reads(graph)
    return {op.name: reads[op.name] for op in graph.ops if not op.is_size}


def size_segments(graph: OpGraph, fc_ops: frozenset[str]) -> frozenset[str]:
    """The size ops that can't run before FC does, because they read a tensor made there."""
    reads = _resolved_reads(graph)
    return frozenset(op.name for op in graph.ops if op.is_size and not fc_ops.isdisjoint(reads[op.name]))


def tensors(graph: OpGraph) -> tuple[Tensor, ...]:
    """Every tensor that some op or the model's output needs: inputs first, then in program order."""
    resolved = _resolved_reads(graph)
    readers: dict[str, list[str]] = {}
    for reader, names in tensor_reads(graph).items():
        for name in names:
            readers.setdefault(name, []).append(reader)
    outputs = {name for output in graph.outputs for name in _through_sizes(graph, output, resolved)}
    inputs = {value.name for value in graph.inputs}
    return tuple(
        Tensor(value, None if name in inputs else name, tuple(readers.get(name, ())), name in outputs)
        for name, value in graph.value.items()
        if (name in readers or name in outputs) and not (name in graph.op and graph.op[name].is_size)
    )


def _resolved_reads(graph: OpGraph) -> dict[str, tuple[str, ...]]:
    resolved: dict[str, tuple[str, ...]] = {}
    for op in graph.ops:
        names = (source for name in op.inputs for source in _through_sizes(graph, name, resolved))
        resolved[op.name] = tuple(dict.fromkeys(names))
    return resolved


def _through_sizes(graph: OpGraph, name: str, resolved: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    is_size = name in graph.op and graph.op[name].is_size
    return resolved[name] if is_size else (name,)
