"""What each op adds to the sums that a cut is priced by, under several allocations at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stanza_compiler.cost_model import Costs, OpCost
from stanza_compiler.cuts import Cuts
from stanza_compiler.opgraph import Value

Floats = NDArray[np.float64]

# Rows of sums that allocations share: counts and bytes, which are whole numbers and exact as floats.
BOUNDARY_BYTES, OPS, WORK, TRAINS = range(4)
UP, DOWN = slice(4, 7), slice(7, 10)
SHARED = 10

# Kinds of seconds, each with a row for every allocation.
CONV_FORWARD, CONV_BACKWARD, CONV_OPTIMIZER, CONV_NET, FC_COMPUTE, FC_LATE, FC_RING, FC_OPTIMIZER = range(8)
KINDS = 8


@dataclass(frozen=True, slots=True)
class Leaving:
    """A tensor that crosses no more once all `readers`, numbers of groups, are in CONV."""

    sums: Floats
    readers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums by row: the shared ones, then the kinds of seconds, each with a row for every allocation.

    Of what is in CONV they are CONV's forward, backward and optimiser, CONV's ring less the backward that hides it, and
    what FC is spared: compute, late gradients, ring and optimiser. `all_s` has every op in CONV, by kind and
    allocation. `start` are the sums of the cut with nothing in CONV but graph inputs. Op k, of group `group[k]`, adds
    `ops[k]` when it joins CONV: its own costs and the tensors it makes less those that FC surely reads no more;
    `leaving[k]` are the tensors of which that depends on other readers. `ready_s[k]` is the ring's time for op k's
    gradient under each allocation.
    """

    choices: tuple[Costs, ...]
    group: tuple[int, ...]
    start: Floats
    ops: Floats
    ready_s: Floats
    all_s: Floats
    leaving: dict[int, tuple[Leaving, ...]]

    def rows(self, kind: int) -> slice:
        return slice(SHARED + kind * len(self.choices), SHARED + (kind + 1) * len(self.choices))


def tally(choices: Sequence[Costs], cuts: Cuts) -> Tally:
    """The sums for `choices`, which price the same ops and tensors."""
    ops, tensors = choices[0].ops, choices[0].tensors
    position = {op.name: place for place, op in enumerate(ops)}
    group = tuple(cuts.group[op.name] for op in ops)
    sums = np.zeros((len(ops), SHARED + KINDS * len(choices)))
    start = np.zeros(sums.shape[1])
    leaving: dict[int, list[Leaving]] = {}
    works = [cuts.work >> number & 1 for number in range(len(cuts.groups))]
    for place, op in enumerate(ops):
        sums[place, :4] = 0, 1, works[group[place]], op.trains
    for number, costs in enumerate(choices):
        sums[:, SHARED + number :: len(choices)] = [kinds_of_seconds(op, costs) for op in costs.ops]
    all_s = np.array([sums[:, SHARED + kind * len(choices) :][:, : len(choices)].sum(axis=0) for kind in range(KINDS)])
    for tensor in tensors:
        # What can only be in CONV never makes a tensor cross.
        readers = {position[name] for name in tensor.readers if not cuts.conv_only >> cuts.group[name] & 1}
        if not readers and not tensor.is_output:
            continue
        crossing = crossing_sums(tensor.value)
        (start if tensor.maker is None else sums[position[tensor.maker]])[:SHARED] += crossing
        groups = {group[place] for place in readers}
        if tensor.is_output or any(cuts.fc_only >> number & 1 for number in groups):
            continue
        last = max(readers)
        others = tuple(sorted(number for number in groups if not cuts.earlier[group[last]] >> number & 1))
        if others:
            leaving.setdefault(last, []).append(Leaving(crossing, others))
        else:
            sums[last, :SHARED] -= crossing
    ready_s = np.array([[op.conv_ring_bytes * costs.conv_ring.s_per_byte for op in costs.ops] for costs in choices]).T
    frozen = {place: tuple(each) for place, each in leaving.items()}
    return Tally(tuple(choices), group, start, sums, ready_s, all_s, frozen)


def kinds_of_seconds(op: OpCost, costs: Costs) -> tuple[float, ...]:
    """What an op in CONV adds to each kind of seconds."""
    return (
        op.conv_forward_s,
        op.conv_backward_s,
        op.conv_updated_bytes * costs.optimizer_s_per_byte,
        op.conv_ring_bytes * costs.conv_ring.s_per_byte - op.conv_backward_s,
        op.fc_forward_s + op.fc_backward_s - op.fc_late_s,
        op.fc_late_s,
        op.fc_ring_bytes * costs.fc_ring.s_per_byte,
        op.fc_updated_bytes * costs.optimizer_s_per_byte,
    )


def crossing_sums(value: Value) -> Floats:
    """What the shared sums hold for one tensor that crosses."""
    if value.kind == "replicated":
        payload = (0, 0, value.constant_bytes)
    else:
        payload = (value.bytes_per_sample, value.constant_bytes, 0)
    returned = payload if value.requires_grad else (0, 0, 0)
    return np.array([value.bytes_at(1), 0, 0, 0, *payload, *returned], dtype=np.float64)


def iteration_s(tally: Tally, sums: Floats, peak_s: Floats) -> Floats:
    """`cost_model.price_cut` of every cut, a column of `sums`; an allocation a row.

    `peak_s` is what CONV's ring leaves exposed of each cut: the most, over its ops k, of the ring's seconds for the
    gradients of ops up to k less the backward of ops before k.
    """
    return np.stack([_iteration_s(tally, number, sums, peak_s[number]) for number in range(len(tally.choices))])


def _iteration_s(tally: Tally, number: int, sums: Floats, peak_s: Floats) -> Floats:
    costs = tally.choices[number]
    forward_s, backward_s, conv_optimizer_s, net_s, *spared_s = (
        sums[tally.rows(kind)][number] for kind in range(KINDS)
    )
    fc_s, late_s, fc_ring_s, fc_optimizer_s = (
        tally.all_s[kind, number] - spared
        for kind, spared in zip((FC_COMPUTE, FC_LATE, FC_RING, FC_OPTIMIZER), spared_s, strict=True)
    )
    trains = sums[TRAINS]
    fc_trains = tally.ops[:, TRAINS].sum() - trains
    fc_ring_s = np.where(fc_trains > 0, costs.fc_ring.latency_s + fc_ring_s, 0.0)
    fc_optimizer_s = np.where(fc_trains > 0, fc_optimizer_s, 0.0)
    conv_latency_s = np.where(trains > 0, costs.conv_ring.latency_s, 0.0)
    if costs.allocation.placement == "dedicated":
        end_s = np.maximum(backward_s + conv_latency_s + peak_s + conv_optimizer_s, late_s + fc_ring_s + fc_optimizer_s)
    else:
        exposed_s = np.maximum(conv_latency_s + np.maximum(peak_s, fc_ring_s + net_s), late_s)
        end_s = backward_s + exposed_s + conv_optimizer_s + fc_optimizer_s
    up_s = _sending_s(costs, sums[UP], costs.target_bytes)
    return np.asarray(forward_s + up_s + fc_s + _sending_s(costs, sums[DOWN], 0) + end_s)


def _sending_s(costs: Costs, payload: Floats, target_bytes: int) -> Floats:
    traffic = costs.traffic
    sent = np.array([traffic.samples, traffic.ranks, traffic.copies]) @ payload + traffic.samples * target_bytes
    if not costs.links:
        return np.zeros(payload.shape[1])
    targets_s = np.array([[link.samples * link.s_per_byte * target_bytes] for link in costs.links])
    return np.where(sent > 0, costs.latency_s + (link_seconds(costs) @ payload + targets_s).max(axis=0), 0.0)


def link_seconds(costs: Costs) -> Floats:
    """Seconds a byte of each kind of payload: a row for each link."""
    loads = np.array([(link.samples, link.ranks, link.copies) for link in costs.links], dtype=np.float64)
    return np.asarray(loads * np.array([[link.s_per_byte] for link in costs.links]))
