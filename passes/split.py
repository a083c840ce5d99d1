"""From one graph to one graph per segment."""

from dataclasses import dataclass

from torch import fx

from stanza_compiler.passes.trace import Trace
from stanza_compiler.plan import Plan, Role


@dataclass(frozen=True, slots=True)
class Segment:
    """One run of ops: `graph` takes and gives the named values in that order.

    The last segment gives nothing by name: it returns the model's own output.
    """

    role: Role
    graph: fx.Graph
    takes: tuple[str, ...]
    gives: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.role}({', '.join(self.takes)}) -> {', '.join(self.gives) or 'output'}\n{self.graph}"


@dataclass(frozen=True, slots=True)
class Stages:
    """The segments in the order in which a step runs them."""

    segments: tuple[Segment, ...]

    def of(self, role: Role) -> tuple[Segment, ...]:
        return tuple(segment for segment in self.segments if segment.role == role)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.segments))


def split(traced: Trace, plan: Plan, is_size: frozenset[str]) -> Stages:
    """Group the ops into the plan's segments and find the tensors that cross between them.

    Parameters are read where they are used; ops on sizes (`is_size`) are computed anew in every segment that needs
    their value; everything else that another segment makes crosses.
    """
    runs = [(stage.role, frozenset(names)) for stage in plan.stages for names in stage.segments]
    nodes = {name: node for node, name in traced.names.items()}
    output = next(iter(reversed(traced.graph.nodes)))
    needs = []
    for index, (_, names) in enumerate(runs):
        readers = [nodes[name] for name in nodes if name in names]
        if index == len(runs) - 1:
            readers.append(output)
        needs.append(_needed(readers, names, traced, is_size))
    segments = []
    for index, (role, names) in enumerate(runs):
        takes = tuple(name for name in nodes if name in needs[index])
        later = set().union(*needs[index + 1 :])
        gives = tuple(name for name in nodes if name in names and name in later)
        is_last = index == len(runs) - 1
        graph = _segment_graph(traced, nodes, names, takes, gives, output if is_last else None)
        segments.append(Segment(role, graph, takes, gives))
    crossing = {name for index, segment in enumerate(segments) for name in segment.takes if index}
    assert crossing == {boundary.name for boundary in plan.boundary}, (crossing, plan.boundary)
    return Stages(tuple(segments))


def _needed(readers: list[fx.Node], own: frozenset[str], traced: Trace, is_size: frozenset[str]) -> set[str]:
    """Names of the values that `readers` use and their segment does not make."""
    needed: set[str] = set()
    waiting = list(readers)
    seen: set[fx.Node] = set(readers)
    while waiting:
        for argument in waiting.pop().all_input_nodes:
            name = traced.names.get(argument)
            if name is None or name in own:
                continue
            if name in is_size:
                if argument not in seen:
                    seen.add(argument)
                    waiting.append(argument)
            else:
                needed.add(name)
    return needed


def _segment_graph(
    traced: Trace,
    nodes: dict[str, fx.Node],
    names: frozenset[str],
    takes: tuple[str, ...],
    gives: tuple[str, ...],
    output: fx.Node | None,
) -> fx.Graph:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for name in takes:
        copies[nodes[name]] = graph.placeholder(nodes[name].name)

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:
            for argument in node.all_input_nodes:
                copied(argument)
            copies[node] = graph.node_copy(node, lambda argument: copies[argument])
            copies[node].meta["op"] = traced.names.get(node, "")
        return copies[node]

    for name, node in nodes.items():
        if name in names:
            copied(node)
    if output is not None:
        graph.output(fx.map_arg(output.args[0], copied))
    else:
        values = tuple(copied(nodes[name]) for name in gives)
        graph.output(values[0] if len(values) == 1 else values)
    return graph
