"""Every legal cut of a model, as sets of op groups that share a segment."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import networkx as nx

from stanza_compiler.dataflow import tensor_reads
from stanza_compiler.opgraph import OpGraph, Rules


@dataclass(frozen=True)
class Cuts:
    """Groups of ops that share a segment, and what a cut must respect.

    Groups are numbered such that each comes after those it reads; sets of groups are bit masks. `earlier[g]`
    are the groups that run in CONV if g does, itself included; `later[g]` those in FC if g is. `conv_only` and
    `fc_only` are closed under both. Size arithmetic is in no group: it runs wherever it is needed.
    """

    groups: tuple[tuple[str, ...], ...]
    edges: tuple[tuple[int, int], ...]
    earlier: tuple[int, ...]
    later: tuple[int, ...]
    conv_only: int
    fc_only: int
    work: int

    @cached_property
    def group(self) -> dict[str, int]:
        return {name: number for number, names in enumerate(self.groups) for name in names}

    @cached_property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """For each group those that it reads or that may not come later."""
        before: list[list[int]] = [[] for _ in self.groups]
        for one, other in self.edges:
            before[other].append(one)
        return tuple(map(tuple, before))

    @cached_property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """`before` the other way."""
        after: list[list[int]] = [[] for _ in self.groups]
        for one, other in self.edges:
            after[one].append(other)
        return tuple(map(tuple, after))

    @property
    def everything(self) -> int:
        return (1 << len(self.groups)) - 1

    def ops(self, groups: int) -> frozenset[str]:
        return frozenset(name for number in members(groups) for name in self.groups[number])

    def is_legal(self, fc_groups: int) -> bool:
        """Nothing that reads FC is in CONV, pins hold, both sides have work."""
        conv_groups = self.everything & ~fc_groups
        closed = all(self.earlier[number] & fc_groups == 0 for number in members(conv_groups))
        pinned = not self.conv_only & fc_groups and not self.fc_only & conv_groups
        return closed and pinned and bool(self.work & conv_groups) and bool(self.work & fc_groups)

    def with_in_conv(self, ops: Iterable[str]) -> "Cuts":
        """The cuts that have these ops in CONV."""
        return replace(self, conv_only=self.conv_only | _union(self.earlier[self.group[name]] for name in ops))

    def smallest(self) -> Iterator[int]:
        """The legal cuts whose CONV is the least that holds some group with work; if there are none, no cut is."""
        for number in members(self.work):
            # Closed as it is: both are sets of groups with all that run in CONV if they do.
            conv_groups = self.earlier[number] | self.conv_only
            fc_groups = self.everything & ~conv_groups
            if not self.fc_only & conv_groups and self.work & fc_groups:
                yield fc_groups


def cut_space(graph: OpGraph, rules: Rules, *, one_cut: bool = True) -> Cuts:
    """Merge what must stay together, also where two groups read each other, and close the pins.

    Together stay the rules' groups, a tuple (an op whose output is no tensor) with its readers and, unless FC may
    have two segments around CONV's, the ops that use one parameter.
    """
    network: nx.DiGraph[str] = nx.DiGraph()
    placed = [op.name for op in graph.ops if not op.is_size]
    network.add_nodes_from(placed)
    network.add_edges_from((earlier, later) for earlier, later, _ in precedences(graph, rules, one_cut=one_cut))
    # A component is numbered by its last op: all that it reads, in program order, ends before.
    position = {name: number for number, name in enumerate(placed)}
    components = [tuple(sorted(names, key=position.__getitem__)) for names in nx.strongly_connected_components(network)]
    condensed = nx.condensation(network, scc=[set(names) for names in components])
    order = list(nx.lexicographical_topological_sort(condensed, key=lambda node: position[components[node][0]]))
    number = {node: place for place, node in enumerate(order)}
    edges = tuple(sorted((number[earlier], number[later]) for earlier, later in condensed.edges))
    groups = tuple(components[node] for node in order)
    earlier = _closure(len(groups), edges)
    later = _closure(len(groups), [(after, before) for before, after in reversed(edges)], backwards=True)
    group = {name: place for place, names in enumerate(groups) for name in names}
    return Cuts(
        groups=groups,
        edges=edges,
        earlier=earlier,
        later=later,
        conv_only=_union(earlier[group[name]] for name in rules.conv_only if name in group),
        fc_only=_union(later[group[name]] for name in rules.fc_only if name in group),
        work=_union(1 << group[op.name] for op in graph.ops if op.name in group and op.has_work),
    )


def precedences(graph: OpGraph, rules: Rules, *, one_cut: bool = True) -> Iterator[tuple[str, str, str]]:
    """(earlier, later, why): the later op is never in an earlier segment. Together is both ways."""
    placed = {op.name for op in graph.ops if not op.is_size}
    for reader, sources in tensor_reads(graph).items():
        for source in sources:
            if source in placed:
                yield source, reader, f"{reader} reads {source}"
                if graph.op[source].output is None:
                    yield reader, source, f"{reader} reads {source}, which yields no tensor that could be sent"
    for parameter, names in parameter_users(graph).items() if one_cut else ():
        yield from _both_ways([name for name in names if name in placed], f"share the parameter {parameter}")
    for group in rules.together:
        yield from _both_ways([name for name in group if name in placed], "must share a segment")
    for earlier, later in rules.order:
        if earlier in placed and later in placed:
            yield earlier, later, f"{later} must not run in an earlier segment than {earlier}"


def parameter_users(graph: OpGraph) -> dict[str, list[str]]:
    """The ops that use each parameter: one role holds it, unless a plan that was asked for parts them."""
    users: dict[str, list[str]] = {}
    for op in graph.ops:
        for parameter in op.parameters:
            users.setdefault(parameter, []).append(op.name)
    return users


def members(groups: int) -> Iterator[int]:
    """The numbers in a bit mask, ascending."""
    while groups:
        lowest = groups & -groups
        yield lowest.bit_length() - 1
        groups ^= lowest


def _both_ways(names: list[str], why: str) -> Iterator[tuple[str, str, str]]:
    for one, other in pairwise(names):
        yield one, other, f"{one} and {other} {why}"
        yield other, one, f"{one} and {other} {why}"


def _closure(count: int, edges: Iterable[tuple[int, int]], *, backwards: bool = False) -> tuple[int, ...]:
    """For every group itself and all before it; `edges` are (before, after), numbered along them."""
    before: list[list[int]] = [[] for _ in range(count)]
    for one, other in edges:
        before[other].append(one)
    masks = [0] * count
    for number in reversed(range(count)) if backwards else range(count):
        masks[number] = _union(masks[one] for one in before[number]) | 1 << number
    return tuple(masks)


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
