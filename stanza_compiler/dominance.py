"""Groups of ops at which no best cut can lie."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stanza_compiler.cost_model import Costs
from stanza_compiler.cuts import Cuts, members
from stanza_compiler.tally import (
    BOUNDARY_BYTES,
    DOWN,
    KINDS,
    SHARED,
    UP,
    Floats,
    Tally,
    crossing_sums,
    kinds_of_seconds,
    link_seconds,
)

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Dominance:
    """By group. `joins_conv`: with all it depends on in CONV it is best there too, in time, boundary bytes and FC ops.

    `joins_fc`: with all that depends on it in FC it is best there too, in time and boundary bytes. No group has both.
    """

    joins_conv: tuple[bool, ...]
    joins_fc: tuple[bool, ...]


def dominance(tally: Tally, cuts: Cuts) -> Dominance:
    """What holds under every allocation, whatever the other groups do.

    Both compare two cuts that differ in one group alone. Every maximum in the cost model grows at most by the largest
    growth of what it is taken over, so that a sum of bounds bounds the difference.
    """
    crossing = _crossing(tally.choices[0], cuts)
    free = ~_mask(cuts.conv_only | cuts.fc_only, len(cuts.groups))
    costs = [_seconds(choice, tally, cuts) for choice in tally.choices]
    keeps_fc, keeps_conv = _keeps_work(cuts)
    made, known = crossing.made, crossing.read_before
    conv_bytes = made[:, BOUNDARY_BYTES] <= known[:, BOUNDARY_BYTES]
    joins_conv = free & keeps_fc & conv_bytes
    fc_bytes = crossing.read_first[:, BOUNDARY_BYTES] <= made[:, BOUNDARY_BYTES]
    joins_fc = free & keeps_conv & fc_bytes
    for choice, seconds in zip(tally.choices, costs, strict=True):
        joins_conv &= seconds.to_conv + _sending(choice, made, known, crossing.read) <= 0
        joins_fc &= seconds.to_fc + _sending(choice, crossing.read_first, made, made) <= 0
    return Dominance(tuple(joins_conv.tolist()), tuple((joins_fc & ~joins_conv).tolist()))


@dataclass(frozen=True, slots=True)
class _Crossing:
    """Sums by group, as `crossing_sums` has them.

    `made`: tensors that others read. `read`: all that it reads of others. Of these, `read_before`: whose other readers
    are all in CONV when it is; `read_first`: that nobody else reads who is in FC when it is.
    """

    made: Floats
    read: Floats
    read_before: Floats
    read_first: Floats


def _crossing(costs: Costs, cuts: Cuts) -> _Crossing:
    made, read, read_before, read_first = (np.zeros((len(cuts.groups), SHARED)) for _ in range(4))
    for tensor in costs.tensors:
        sums = crossing_sums(tensor.value)
        maker = None if tensor.maker is None else cuts.group[tensor.maker]
        readers = {cuts.group[name] for name in tensor.readers}
        if maker is not None and (tensor.is_output or readers - {maker}):
            made[maker] += sums
        for reader in readers - {maker}:
            others = [number for number in readers if number not in (reader, maker)]
            read[reader] += sums
            in_conv = cuts.earlier[reader] | cuts.conv_only
            if not tensor.is_output and all(in_conv >> number & 1 for number in others):
                read_before[reader] += sums
            in_fc = cuts.later[reader] | cuts.fc_only
            if not tensor.is_output and not any(in_fc >> number & 1 for number in others):
                read_first[reader] += sums
    return _Crossing(made, read, read_before, read_first)


@dataclass(frozen=True, slots=True)
class _Seconds:
    """How much longer a step takes at most, by group, when it moves from FC to CONV and back, sending aside."""

    to_conv: Floats
    to_fc: Floats


def _seconds(costs: Costs, tally: Tally, cuts: Cuts) -> _Seconds:
    count = len(cuts.groups)
    sums = np.zeros((count, KINDS + 1))
    np.add.at(sums, list(tally.group), np.array([(*kinds_of_seconds(op, costs), op.trains) for op in costs.ops]))
    forward_s, backward_s, conv_optimizer_s, net_s, fc_s, late_s, fc_ring_s, fc_optimizer_s, training = sums.T
    trains = sum(1 << int(number) for number in np.flatnonzero(training))
    conv_trains, fc_trains = _beside(cuts, trains)
    first_in_conv, first_in_fc = (training > 0) & ~conv_trains, (training > 0) & ~fc_trains
    conv_ring_s = net_s + backward_s + first_in_conv * costs.conv_ring.latency_s
    fc_ring_s = fc_ring_s + first_in_fc * costs.fc_ring.latency_s
    # A colocated device runs both optimisers: what one gains the other loses.
    is_shared = costs.allocation.placement != "dedicated"
    return _Seconds(
        # What came late may have cost nothing.
        to_conv=forward_s + backward_s + conv_ring_s + conv_optimizer_s - is_shared * fc_optimizer_s - fc_s,
        # An op less in CONV's backward may expose as much of its ring.
        to_fc=fc_s + late_s + fc_ring_s + fc_optimizer_s - is_shared * conv_optimizer_s - forward_s,
    )


def _sending(costs: Costs, more: Floats, less: Floats, before: Floats) -> Floats:
    """How much longer both ways take at most with the tensors `more` instead of `less`; `before` surely crossed."""
    if not costs.links:
        return np.zeros(len(more))
    traffic = np.array([costs.traffic.samples, costs.traffic.ranks, costs.traffic.copies])
    total_s = np.zeros(len(more))
    for way, always in ((UP, bool(costs.target_bytes)), (DOWN, False)):
        starts = (more[:, way] @ traffic > 0) & (before[:, way] @ traffic <= 0) & (not always)
        total_s += ((more - less)[:, way] @ link_seconds(costs).T).max(axis=1) + starts * costs.latency_s
    return total_s


def _keeps_work(cuts: Cuts) -> tuple[Bools, Bools]:
    """Whether FC, and whether CONV, has work without the group."""
    conv, fc = _beside(cuts, cuts.work)
    idle = ~_mask(cuts.work, len(cuts.groups))
    return idle | fc, idle | conv


def _beside(cuts: Cuts, marked: int) -> tuple[Bools, Bools]:
    """Whether a group in CONV surely has others of `marked` beside it there, and the same in FC."""
    conv = [
        bool((cuts.earlier[number] & ~(1 << number) | cuts.conv_only) & marked) for number in range(len(cuts.groups))
    ]
    fc = [bool((cuts.later[number] & ~(1 << number) | cuts.fc_only) & marked) for number in range(len(cuts.groups))]
    return np.array(conv, dtype=bool), np.array(fc, dtype=bool)


def _mask(groups: int, count: int) -> Bools:
    mask = np.zeros(count, dtype=bool)
    mask[list(members(groups))] = True
    return mask
