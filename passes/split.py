"""From one graph to one graph per segment."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import fx

from stanza_compiler.errors import PlanError
from stanza_compiler.opgraph import OpGraph
from stanza_compiler.plan import Plan, Role
from stanza_compiler.structure import Structure
from stanza_compiler.traced import Trace


@dataclass(frozen=True, slots=True)
class Segment:
    """One run of ops: `graph` takes and gives the named values in that order.

    The last segment gives nothing by name: its graph returns the values of the model's own output, whose structure
    is `result`.
    """

    role: Role
    graph: fx.Graph
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    result: Structure | None = None

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


def split(traced: Trace, plan: Plan, graph: OpGraph) -> Stages:
    """Group the ops into the plan's segments and find the tensors that cross between them.

    Parameters are read where they are used; ops on sizes are computed anew in every segment that needs their value,
    the size of the batch and the device from a tensor that crosses anyway; everything else that another segment makes
    crosses. Raises PlanError for a segment that needs the size of the batch but takes no batched tensor.
    """
    return _Splitter(traced, plan, graph).stages()


class _Splitter:
    def __init__(self, traced: Trace, plan: Plan, graph: OpGraph) -> None:
        self.traced, self.plan, self.place = traced, plan, graph.name
        self.values = graph.value
        self.inputs = [value.name for value in graph.inputs]
        self.nodes = {name: node for node, name in traced.names.items()}
        self.output = next(iter(reversed(traced.graph.nodes)))
        self.is_size = {op.name for op in graph.ops if op.is_size}
        self.anyones = {
            op.name for op in graph.ops if op.is_size and not op.inputs and self.nodes[op.name].all_input_nodes
        }

    def stages(self) -> Stages:
        runs = [(role, frozenset(names)) for role, names in self.plan.sequence]
        last = len(runs) - 1
        needs = []
        for index, (role, names) in enumerate(runs):
            readers = [node for name, node in self.nodes.items() if name in names and name not in self.is_size]
            needed, sizes = self._needed([*readers, self.output] if index == last else readers, names, role)
            if role == "conv" and any(self.is_replaced(self.nodes[name], names, role) for name in sizes):
                needed |= self._batched_input(needed)
            needs.append((needed, sizes))
        segments = []
        for index, (role, names) in enumerate(runs):
            needed, sizes = needs[index]
            takes = tuple(name for name in self.nodes if name in needed)
            later = set().union(*(names for names, _ in needs[index + 1 :]))
            gives = tuple(name for name in self.nodes if name in names and name in later)
            copy = _Copy(self, names, sizes, takes, role)
            segments.append(
                Segment(role, copy.graph(self.output), takes, (), self.traced.result)
                if index == last
                else Segment(role, copy.graph([self.nodes[name] for name in gives]), takes, gives)
            )
        crossing = {name for segment in segments for name in _crossing(segment, segments)}
        assert crossing == {boundary.name for boundary in self.plan.boundary}, (crossing, self.plan.boundary)
        return Stages(tuple(segments))

    def _needed(self, readers: list[fx.Node], own: frozenset[str], role: Role) -> tuple[set[str], set[str]]:
        """Names of the values that `readers` use and their segment does not make, and of the sizes that they use."""
        needed: set[str] = set()
        sizes: set[str] = set()
        waiting = list(readers)
        while waiting:
            for argument in waiting.pop().all_input_nodes:
                name = self.traced.names.get(argument)
                if name is None or name in sizes:
                    continue
                if name in self.is_size:
                    sizes.add(name)
                    waiting += [] if self.is_replaced(argument, own, role) else [argument]
                elif name not in own:
                    needed.add(name)
        return needed, sizes

    def is_replaced(self, node: fx.Node, own: frozenset[str], role: Role) -> bool:
        """Whether a segment takes this size or device from a tensor that it has, not having the one it is of."""
        if self.traced.names.get(node) not in self.anyones:
            return False
        sources = list(node.all_input_nodes)
        while sources:
            source = sources.pop()
            name = self.traced.names.get(source)
            if name in self.is_size:
                sources += source.all_input_nodes
            elif name is not None and name not in own and not (role == "conv" and name in self.inputs):
                return True
        return False

    def _batched_input(self, taken: set[str]) -> set[str]:
        """An input, which CONV's ranks have, for a segment that needs the size of the batch and takes nothing of it."""
        if any(self.values[name].batch_axis is not None for name in taken):
            return set()
        return set([name for name in self.inputs if self.values[name].batch_axis is not None][:1])

    def at_hand(self, takes: tuple[str, ...], *, batched: bool) -> tuple[str, int]:
        """The first tensor among `takes`, a batched one if asked for, and its batch axis."""
        for name in takes:
            axis = self.values[name].batch_axis
            if not batched or axis is not None:
                return name, axis or 0
        raise PlanError(self.place, "the cut leaves the FC part no batched tensor", "cut elsewhere: --cut-after")


def _crossing(segment: Segment, segments: list[Segment]) -> Iterator[str]:
    """What a segment takes from another one; CONV's ranks have the model's inputs."""
    made = {name for other in segments for name in other.gives}
    for name in segment.takes:
        if name in made or segment.role == "fc":
            yield name


class _Copy:
    """One segment's graph in the making."""

    def __init__(
        self, splitter: _Splitter, own: frozenset[str], sizes: set[str], takes: tuple[str, ...], role: Role
    ) -> None:
        self.splitter, self.own, self.takes, self.role = splitter, own, takes, role
        self.made = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        for name in takes:
            node = splitter.nodes[name]
            self.copies[node] = self.made.placeholder(node.name)
        for name, node in splitter.nodes.items():
            if name in sizes if name in splitter.is_size else name in own:
                self._copied(node)

    def graph(self, returns: fx.Node | list[fx.Node]) -> fx.Graph:
        """The graph, giving what an output node or a list of nodes says."""
        if isinstance(returns, fx.Node):
            self.made.output(fx.map_arg(returns.args[0], self._copied))
        else:
            values = tuple(map(self._copied, returns))
            self.made.output(values[0] if len(values) == 1 else values)
        return self.made

    def _copied(self, node: fx.Node) -> fx.Node:
        if node in self.copies:
            return self.copies[node]
        if self.splitter.is_replaced(node, self.own, self.role):
            copied = self._from_what_is_at_hand(node)
        else:
            for argument in node.all_input_nodes:
                self._copied(argument)
            copied = self.made.node_copy(node, self.copies.__getitem__)
        copied.meta["op"] = self.splitter.traced.names.get(node, "")
        self.copies[node] = copied
        return copied

    def _from_what_is_at_hand(self, node: fx.Node) -> fx.Node:
        wants_device = node.target is getattr
        name, axis = self.splitter.at_hand(self.takes, batched=not wants_device)
        tensor = self.copies[self.splitter.nodes[name]]
        if wants_device:
            return self.made.call_function(getattr, (tensor, "device"))
        return self.made.call_method("size", (tensor, axis))
