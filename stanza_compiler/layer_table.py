"""What each op, or run of ops, has of the model's computation and parameters, and which side holds it."""

from dataclasses import dataclass
from itertools import groupby

from stanza_compiler.opgraph import Op, OpGraph
from stanza_compiler.plan import Plan


@dataclass(frozen=True, slots=True)
class Layer:
    """One op, or a run of `ops` that `parent` has in common; `side` is the role of the stage that holds it.

    A parameter counts where it is used first. `uncounted` tells that an op's computation could not be counted.
    """

    name: str
    parent: str
    kinds: tuple[str, ...]
    source: str
    side: str
    forward_flops: int
    parameter_bytes: int
    uncounted: bool
    ops: int = 1

    def __str__(self) -> str:
        return self.name if self.ops == 1 else f"{self.parent or self.name} ({self.ops} ops)"


def layers(plan: Plan, graph: OpGraph) -> tuple[Layer, ...]:
    """One Layer per op, in program order."""
    roles: dict[str, list[str]] = {}
    for stage in plan.stages:
        for name in dict.fromkeys(name for segment in stage.segments for name in segment):
            roles.setdefault(name, []).append(stage.role)
    rows: list[Layer] = []
    seen: set[str] = set()
    for op in graph.ops:
        new = [name for name in dict.fromkeys(op.parameters) if name not in seen]
        seen.update(new)
        rows.append(
            Layer(
                name=op.name,
                parent=_parent(op, rows[-1].parent if rows else ""),
                kinds=(op.kind,),
                source=op.source,
                side=", ".join(roles.get(op.name, ["-"])),
                forward_flops=op.forward_flops,
                parameter_bytes=sum(graph.parameter[name].bytes for name in new),
                uncounted=bool(op.uncounted),
            )
        )
    return tuple(rows)


def _parent(op: Op, previous: str) -> str:
    """The module that holds the op; a call outside every submodule, without parameters, joins what precedes it."""
    parent = op.name.rpartition(".")[0]
    return parent if parent or op.parameters else previous


def merged(rows: tuple[Layer, ...], *, limit: int) -> tuple[Layer, ...]:
    """The rows themselves when at most `limit`, else runs of one side and one parent module.

    The parent is the nearest one that leaves at most `limit` runs, the whole model when none does.

    >>> from dataclasses import replace
    >>> row = Layer("", "", ("ReLU",), "", "conv", 1, 0, False)
    >>> names = ("a.0.x", "a.0.y", "a.1.x", "a.1.y", "b.x")
    >>> rows = tuple(replace(row, name=name, parent=name.rpartition(".")[0]) for name in names)
    >>> [str(run) for run in merged(rows, limit=3)]
    ['a.0 (2 ops)', 'a.1 (2 ops)', 'b.x']
    >>> [str(run) for run in merged(rows, limit=2)]
    ['a (4 ops)', 'b.x']
    """
    if len(rows) <= limit:
        return rows
    for depth in range(max(row.parent.count(".") for row in rows) + 1, 0, -1):
        runs = _runs(rows, depth)
        if len(runs) <= limit:
            return runs
    return _runs(rows, 0)


def _runs(rows: tuple[Layer, ...], depth: int) -> tuple[Layer, ...]:
    def key(row: Layer) -> tuple[str, str]:
        return row.side, ".".join(row.parent.split(".")[:depth])

    return tuple(_run(tuple(run), parent) for (_, parent), run in groupby(rows, key))


def _run(rows: tuple[Layer, ...], parent: str) -> Layer:
    return Layer(
        name=rows[0].name if len(rows) == 1 else f"{rows[0].name} .. {rows[-1].name}",
        parent=parent,
        kinds=tuple(dict.fromkeys(kind for row in rows for kind in row.kinds)),
        source=rows[0].source,
        side=rows[0].side,
        forward_flops=sum(row.forward_flops for row in rows),
        parameter_bytes=sum(row.parameter_bytes for row in rows),
        uncounted=any(row.uncounted for row in rows),
        ops=len(rows),
    )
