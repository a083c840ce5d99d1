"""Where FC's part may stand in front of CONV's: embedding tables, alone or beside a head behind CONV."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from stanza_compiler.cuts import Cuts, cut_space, members, parameter_users
from stanza_compiler.dataflow import tensor_reads
from stanza_compiler.opgraph import OpGraph, Rules

Order = Literal["fc-conv", "fc-conv-fc"]
ORDERS: tuple[Order, ...] = ("fc-conv", "fc-conv-fc")


@dataclass(frozen=True)
class FrontSpace:
    """Groups of ops that share a segment, and the segments that each may be in.

    `front`, `back` and `last` are bit masks of the groups that may be in front of CONV, may be behind it and must be
    behind it. `heavy` ones have trained parameters. The groups of one of `ties` one role holds: they use one parameter,
    or are large tables.
    `ends_in_fc`: a host must see the whole batch, so the loss, which is where the last segment runs, can't be CONV's.
    """

    cuts: Cuts
    front: int
    back: int
    last: int
    heavy: int
    ties: tuple[tuple[int, ...], ...]
    ends_in_fc: bool

    def why_not(self, order: Order) -> str:
        """Why there is no plan of this order, empty where there may be one."""
        if not self.front & self.heavy:
            return "no lookup in trained parameters can stand in front of CONV"
        if order == "fc-conv" and self.ends_in_fc:
            return "the loss needs the whole batch, which an FC host sees behind CONV"
        if order == "fc-conv" and self.last:
            return f"{self.cuts.groups[next(members(self.last))][0]} must be in FC behind CONV"
        if order == "fc-conv-fc" and not self.back & self.cuts.work:
            return "nothing with work can stand behind CONV"
        return ""

    def is_legal(self, front: int, back: int) -> bool:
        """Nothing reads what a later segment makes, every tie has one role, and all segments asked for have work."""
        cuts = self.cuts
        conv = cuts.everything & ~(front | back)
        in_order = all(cuts.earlier[number] & ~front == 0 for number in members(front)) and all(
            cuts.later[number] & ~back == 0 for number in members(back)
        )
        allowed = not (front & back or front & ~self.front or back & ~self.back or self.last & ~back)
        has_end = bool(back) or not self.ends_in_fc
        one_role = all(len({(front | back) >> number & 1 for number in tie}) == 1 for tie in self.ties)
        has_work = bool(front & self.heavy and conv & cuts.work and (back & cuts.work or not back))
        return in_order and allowed and one_role and has_work and has_end


def front_space(
    graph: OpGraph,
    rules: Rules,
    in_conv: Iterable[str] = (),
    not_in_front: Iterable[str] = (),
    as_one: Iterable[str] = (),
) -> FrontSpace:
    """The segments that each group may be in, with the ops of `in_conv` in CONV.

    Those ops of `as_one` that may be in front go to one role.
    """
    cuts = cut_space(graph, rules, one_cut=False)
    group = cuts.group
    pinned = [group[name] for name in (*rules.conv_only, *in_conv) if name in group]
    before, behind = 0, 0
    for number in pinned:
        before |= cuts.earlier[number]
        behind |= cuts.later[number]
    for name in (*not_in_front, *_without_a_batch(graph)):
        behind |= cuts.later[group[name]] if name in group else 0
    last = 0
    for name in rules.fc_only:
        last |= cuts.later[group[name]] if name in group else 0
    heavy = 0
    ties = []
    for parameter, names in parameter_users(graph).items():
        users = tuple(dict.fromkeys(group[name] for name in names if name in group))
        if len(users) > 1:
            ties.append(users)
        if graph.parameter[parameter].trainable:
            heavy |= sum(1 << number for number in users)
    front = cuts.everything & ~behind & ~last
    movable = {group[name] for name in as_one if name in group and front >> group[name] & 1}
    if len(movable) > 1:
        ties.append(tuple(sorted(movable)))
    return FrontSpace(
        cuts, front, cuts.everything & ~before, last, heavy, tuple(dict.fromkeys(ties)), bool(rules.single_host)
    )


def front_of(graph: OpGraph, cuts: Cuts, fc_ops: frozenset[str]) -> frozenset[str]:
    """Those of a plan's FC ops that some op of CONV comes after."""
    conv = cuts.everything & ~sum(1 << number for number in {cuts.group[name] for name in fc_ops if name in cuts.group})
    before = 0
    for number in members(conv):
        before |= cuts.earlier[number]
    return fc_ops & cuts.ops(before)


def _without_a_batch(graph: OpGraph) -> Iterator[str]:
    """Ops that need the size of the batch, or the device, but come after no input that would tell the hosts."""
    told = {value.name for value in graph.inputs if value.batch_axis is not None}
    anyones: set[str] = set()
    reads = tensor_reads(graph)
    for op in graph.ops:
        if op.is_size:
            if not op.inputs or not anyones.isdisjoint(op.inputs):
                anyones.add(op.name)
        elif not told.isdisjoint(reads[op.name]):
            told.add(op.name)
        elif not anyones.isdisjoint(op.inputs):
            yield op.name
