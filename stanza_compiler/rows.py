"""The cuts within one window side by side."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from stanza_compiler.cuts import Cuts
from stanza_compiler.dominance import Dominance
from stanza_compiler.tally import CONV_NET, SHARED, Floats, Tally
from stanza_compiler.windows import Window

# Cuts times groups of which it must be known in which cuts they are, a byte each.
MOST_MEMBERS = 100_000_000

Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sums:
    """Cuts as columns: `sums` as a Tally has them and CONV's exposed ring under each allocation, for `iteration_s`."""

    sums: Floats
    peak_s: Floats


@dataclass(frozen=True, slots=True)
class Rows:
    """The cuts of a window.

    Cut k is cut `parent[k]` with one more group in CONV, `joined[k]`, and what joins CONV of itself. Cut 0 has
    nothing of the window in CONV, cut `full` all of it. Cuts that are not `alive` are no better than others.
    """

    sums: Sums
    parent: Integers
    joined: Integers
    alive: Bools
    full: int

    def path(self, cut: int) -> frozenset[int]:
        """The groups in CONV that did not join of themselves."""
        found = set()
        while cut:
            found.add(int(self.joined[cut]))
            cut = int(self.parent[cut])
        return frozenset(found)


def followed(tally: Tally, ops: Iterable[int], cuts: Sums) -> Sums:
    """The cuts with `ops`, in program order, in CONV, and with all in CONV that reads what these read."""
    sums, peak_s = cuts.sums.copy(), cuts.peak_s.copy()
    for place in ops:
        np.maximum(peak_s, sums[tally.rows(CONV_NET)] + tally.ready_s[place][:, None], out=peak_s)
        sums += tally.ops[place][:, None]
        for leaving in tally.leaving.get(place, ()):
            sums[:SHARED] -= leaving.sums[:, None]
    return Sums(sums, peak_s)


class Pricing:
    """Finds the cuts of one window and their sums, op by op.

    With `drop` such cuts die too as are no faster than others and send no fewer bytes but may have fewer FC ops.
    """

    def __init__(
        self, tally: Tally, cuts: Cuts, dominance: Dominance, window: Window, start: Sums, *, drop: bool
    ) -> None:
        self._tally, self._cuts, self._joins_conv = tally, cuts, dominance.joins_conv
        self._sums, self._peak_s = start.sums.copy(), start.peak_s.copy()
        self._parent, self._joined = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._alive, self._member = np.ones(1, np.bool_), np.zeros((1, 1), np.bool_)
        self._count, self._full = 1, 0
        # The row of `_member` that says in which cuts a group is in CONV, while that matters.
        self._slot: dict[int, int] = {}
        self._droppable = _droppable(cuts, dominance, window) if drop else {}
        self._steps = _steps(tally, cuts, window, self._droppable)

    def rows(self, limit: int) -> Rows | None:
        """All cuts, None when there are more than `limit`, or so many groups beside them that memory runs short."""
        for step in self._steps:
            for number in step.decides:
                cuts = self._holding(self._cuts.before[number])
                count = self._count + (0 if self._joins_conv[number] else cuts.size)
                if count > limit or count * (len(self._slot) + 1) > MOST_MEMBERS:
                    return None
                self._decide(number, cuts)
            group = self._tally.group[step.place]
            everywhere = self._cuts.conv_only >> group & 1
            self._join(step.place, np.arange(self._count) if everywhere else self._holding([group]))
            for number in step.forgets:
                del self._slot[number]
        count = self._count
        sums = Sums(self._sums[:, :count], self._peak_s[:, :count])
        return Rows(sums, self._parent[:count], self._joined[:count], self._alive[:count], self._full)

    def _join(self, place: int, cuts: Integers) -> None:
        """Op `place` joins CONV in `cuts`."""
        if not cuts.size:
            return
        is_run = cuts[-1] - cuts[0] + 1 == cuts.size
        columns = slice(int(cuts[0]), int(cuts[-1]) + 1) if is_run else cuts  # a slice is faster
        ready_s = self._tally.ready_s[place]
        if ready_s.any():
            sent_s = self._sums[self._tally.rows(CONV_NET), columns] + ready_s[:, None]
            self._peak_s[:, columns] = np.maximum(self._peak_s[:, columns], sent_s)
        self._sums[:, columns] += self._tally.ops[place][:, None]
        for leaving in self._tally.leaving.get(place, ()):
            left = np.intersect1d(cuts, self._holding(leaving.readers), assume_unique=True)
            self._sums[:SHARED, left] -= leaving.sums[:, None]

    def _decide(self, number: int, cuts: Integers) -> None:
        """A group joins CONV in copies of `cuts`, which have all it depends on there, or in the cuts themselves."""
        slot = self._slot[number] = self._free_slot()
        if self._joins_conv[number]:
            self._member[slot, cuts] = True
        else:
            first, self._count = self._count, self._count + cuts.size
            self._reserve(self._count)
            new = slice(first, self._count)
            self._sums[:, new], self._peak_s[:, new] = self._sums[:, cuts], self._peak_s[:, cuts]
            self._member[:, new] = self._member[:, cuts]
            self._member[slot, new] = self._alive[new] = True
            self._parent[new], self._joined[new] = cuts, number
            self._full = first + int(np.searchsorted(cuts, self._full))
        for other in self._droppable.get(number, ()):
            readers = [self._slot[reader] for reader in self._cuts.after[other] if reader in self._slot]
            self._alive &= self._member[readers].any(axis=0) | ~self._member[self._slot[other]]

    def _holding(self, groups: Iterable[int]) -> Integers:
        """The cuts with all these groups in CONV; those of earlier windows are in all of them."""
        holding = self._alive[: self._count]
        for number in groups:
            if number in self._slot:
                holding = holding & self._member[self._slot[number], : self._count]
        return np.flatnonzero(holding)

    def _free_slot(self) -> int:
        taken = set(self._slot.values())
        slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
        if slot == len(self._member):
            self._member = np.concatenate([self._member, np.zeros_like(self._member)])
        self._member[slot] = False
        return slot

    def _reserve(self, count: int) -> None:
        size = self._parent.size
        if count > size:
            more = max(count, 2 * size) - size
            self._sums, self._peak_s = _grown(self._sums, more), _grown(self._peak_s, more)
            self._parent, self._joined = _grown(self._parent, more), _grown(self._joined, more)
            self._alive, self._member = _grown(self._alive, more), _grown(self._member, more)


Array = TypeVar("Array", bound=NDArray[np.generic])


def _grown(array: Array, more: int) -> Array:
    """With so many more columns."""
    return np.concatenate([array, np.zeros((*array.shape[:-1], more), array.dtype)], axis=-1)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class _Step:
    """One op: the groups to decide on before it joins, and those that nobody asks about behind it."""

    place: int
    decides: tuple[int, ...]
    forgets: tuple[int, ...]


def _steps(tally: Tally, cuts: Cuts, window: Window, droppable: dict[int, tuple[int, ...]]) -> tuple[_Step, ...]:
    """A group is decided on before its first op, or the first one of a group that comes later."""
    inside, waiting = set(window.groups), list(reversed(window.groups))
    decides: list[tuple[int, ...]] = []
    last_use: dict[int, int] = {}
    for index, place in enumerate(window.ops):
        group = tally.group[place]
        due: list[int] = []
        while group in inside and waiting and waiting[-1] <= group:
            due.append(waiting.pop())
        decides.append(tuple(due))
        dropped = [other for number in due for other in droppable.get(number, ())]
        uses = [group, *due, *(source for number in due for source in cuts.before[number])]
        uses += [reader for other in dropped for reader in cuts.after[other]]
        uses += [reader for leaving in tally.leaving.get(place, ()) for reader in leaving.readers]
        last_use |= dict.fromkeys((number for number in uses if number in inside), index)
    forgets: list[list[int]] = [[] for _ in window.ops]
    for number, index in last_use.items():
        forgets[index].append(number)
    return tuple(map(_Step, window.ops, decides, map(tuple, forgets)))


def _droppable(cuts: Cuts, dominance: Dominance, window: Window) -> dict[int, tuple[int, ...]]:
    """Groups that go to FC with all that depends on them, by the last of these."""
    inside = set(window.groups)
    found: dict[int, list[int]] = {}
    for number in window.groups:
        readers = [reader for reader in cuts.after[number] if not cuts.fc_only >> reader & 1]
        if dominance.joins_fc[number] and readers and inside.issuperset(readers):
            found.setdefault(max(readers), []).append(number)
    return {last: tuple(numbers) for last, numbers in found.items()}
