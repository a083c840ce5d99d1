"""Every cut that may be best, priced at once.

Ops are taken in program order. A *row* is a cut: what joined CONV so far, everything else in FC. Where a group of ops
may join CONV, each row that has all it depends on there is doubled, unless one of the two is surely no better.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from operator import or_

import numpy as np

from stanza_compiler.cuts import Cuts
from stanza_compiler.dominance import Dominance
from stanza_compiler.rows import Bools, Integers, Pricing, Rows, Sums, followed
from stanza_compiler.tally import BOUNDARY_BYTES, CONV_NET, OPS, WORK, Tally, iteration_s
from stanza_compiler.windows import Window, windows

# Cuts within this share of the least time tie.
TIE = 1e-9

# Cuts times allocations of one window, above which its best cut is left to the solver.
CELLS = 1_000_000

# Plans that are told for an allocation: the best one and runners-up.
PLANS = 3

# Ties of an allocation that are told apart by which ops are in FC.
TIES = 256

# Cuts that are priced at once.
BATCH = 4096


@dataclass(frozen=True, slots=True)
class Swept:
    """For each allocation the FC groups of the best cuts, best first; and the windows with too many cuts to price."""

    best: tuple[tuple[int, ...], ...]
    wide: tuple[Window, ...]


def sweep(tally: Tally, cuts: Cuts, dominance: Dominance) -> Swept:
    """Price the cuts of every window that has few enough of them."""
    every = windows(cuts, tally.group)
    behind = _behind(tally, cuts, (*(window.ops for window in every.windows), every.rest))
    base = Sums(tally.start[:, None], np.zeros((len(tally.choices), 1)))
    found, wide = _Found(tally, cuts, dominance, every.windows), []
    for index, window in enumerate(every.windows):
        rows = _rows(tally, cuts, dominance, window, base)
        if rows is None:
            wide.append(window)
            base = followed(tally, window.ops, base)
        else:
            # What comes after has all of this window in CONV.
            found.add(index, rows, rows.alive & (np.arange(rows.alive.size) != rows.full), behind[index + 1])
            base = Sums(rows.sums.sums[:, [rows.full]], rows.sums.peak_s[:, [rows.full]])
    last = Rows(base, np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.bool_), 0)
    found.add(len(every.windows), last, last.alive, behind[-2])
    return Swept(found.best(), tuple(wide))


def _rows(tally: Tally, cuts: Cuts, dominance: Dominance, window: Window, base: Sums) -> Rows | None:
    limit = CELLS // len(tally.choices)
    for drop in (False, True):
        rows = Pricing(tally, cuts, dominance, window, base, drop=drop).rows(limit)
        if rows is not None:
            return rows
    return None


def _behind(tally: Tally, cuts: Cuts, stretches: tuple[tuple[int, ...], ...]) -> list[Sums]:
    """For each stretch of ops, and the end, what is in CONV anyhow of it and of all behind it."""
    sums, peak_s = np.zeros((tally.start.size, 1)), np.zeros((len(tally.choices), 1))
    behind = [Sums(sums, peak_s)]
    for places in reversed(stretches):
        for place in reversed(places):
            if cuts.conv_only >> tally.group[place] & 1:
                added = tally.ops[place][:, None]
                peak_s = np.maximum(tally.ready_s[place][:, None], peak_s + added[tally.rows(CONV_NET)])
                sums = sums + added
        behind.append(Sums(sums, peak_s))
    return behind[::-1]


@dataclass(frozen=True, slots=True)
class _Plan:
    """A cut under one allocation: the window it lies in, and what of it is in CONV without joining of itself."""

    iteration_s: float
    boundary_bytes: float
    fc_ops: float
    window: int
    path: frozenset[int]

    @property
    def tie_order(self) -> tuple[float, float]:
        return self.boundary_bytes, self.fc_ops


class _Found:
    """The best cuts so far."""

    def __init__(self, tally: Tally, cuts: Cuts, dominance: Dominance, every: tuple[Window, ...]) -> None:
        self._tally, self._cuts, self._joins_conv, self._windows = tally, cuts, dominance.joins_conv, every
        # What is in CONV before each window, and behind the last one.
        masks = (sum(1 << number for number in window.groups) for window in every)
        self._before = list(accumulate(masks, or_, initial=cuts.conv_only))
        self._plans: tuple[list[_Plan], ...] = tuple([] for _ in tally.choices)
        self._waiting: list[tuple[int, Rows, Integers, Sums]] = []
        self._waiting_cuts = 0
        self._work = tally.ops[:, WORK].sum()

    def add(self, window: int, rows: Rows, which: Bools, behind: Sums) -> None:
        """Take into account those of `rows` that leave work on both sides."""
        work = rows.sums.sums[WORK] + behind.sums[WORK]
        cuts = np.flatnonzero(which & (work > 0) & (work < self._work))
        sums, peak_s = rows.sums.sums[:, cuts], rows.sums.peak_s[:, cuts]
        peak_s = np.maximum(peak_s, sums[self._tally.rows(CONV_NET)] + behind.peak_s)
        self._waiting.append((window, rows, cuts, Sums(sums + behind.sums, peak_s)))
        self._waiting_cuts += cuts.size
        if self._waiting_cuts > BATCH:
            self._price()

    def best(self) -> tuple[tuple[int, ...], ...]:
        """For each allocation the FC groups of its best cuts, best first."""
        self._price()
        return tuple(tuple(self._ranked(plans)) for plans in self._plans)

    def _price(self) -> None:
        """Keep those of the waiting cuts that may be among the best."""
        if not self._waiting:
            return
        sums = np.concatenate([each.sums for *_, each in self._waiting], axis=1)
        peak_s = np.concatenate([each.peak_s for *_, each in self._waiting], axis=1)
        where = [(window, rows, int(cut)) for window, rows, cuts, _ in self._waiting for cut in cuts]
        boundary_bytes, fc_ops = sums[BOUNDARY_BYTES], len(self._tally.ops) - sums[OPS]
        for plans, times_s in zip(self._plans, iteration_s(self._tally, sums, peak_s), strict=True):
            least_s = min([times_s.min(initial=np.inf), *(plan.iteration_s for plan in plans)])
            order = np.lexsort((fc_ops, boundary_bytes, times_s))[:PLANS]
            tied = np.flatnonzero(times_s <= least_s * (1 + TIE))
            tied = tied[np.lexsort((fc_ops[tied], boundary_bytes[tied]))][:TIES]
            for index in dict.fromkeys((*order.tolist(), *tied.tolist())):
                window, rows, cut = where[index]
                time_s, sent, ops = (float(figure[index]) for figure in (times_s, boundary_bytes, fc_ops))
                plans.append(_Plan(time_s, sent, ops, window, rows.path(cut)))
        self._waiting.clear()
        self._waiting_cuts = 0

    def _ranked(self, plans: list[_Plan]) -> Iterator[int]:
        if not plans:
            return
        least_s = min(plan.iteration_s for plan in plans)
        tied = [plan for plan in plans if plan.iteration_s <= least_s * (1 + TIE)]
        first = min(plan.tie_order for plan in tied)
        winner = max((plan for plan in tied if plan.tie_order == first), key=self._fc_groups)
        yield self._fc_groups(winner)
        others = (plan for plan in plans if plan is not winner)
        for plan in sorted(others, key=lambda plan: (plan.iteration_s, plan.tie_order))[: PLANS - 1]:
            yield self._fc_groups(plan)

    def _fc_groups(self, plan: _Plan) -> int:
        conv_groups = self._before[plan.window]
        for window in self._windows[plan.window : plan.window + 1]:
            for number in window.groups:
                needs = self._cuts.earlier[number] & ~(1 << number)
                joins = number in plan.path or (self._joins_conv[number] and not needs & ~conv_groups)
                conv_groups |= joins << number
        return self._cuts.everything & ~conv_groups
