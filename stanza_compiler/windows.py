"""The stretches of a model that can be cut independently of all others."""

from dataclasses import dataclass
from itertools import accumulate

from stanza_compiler.cuts import Cuts, members


@dataclass(frozen=True, slots=True)
class Window:
    """Free groups, ascending: each depends on all free groups before the window, each behind it on all of these.

    A cut thus lies within one window. `ops` are the places, in program order, of the window's ops and of those that
    are in CONV anyhow since the window before.
    """

    groups: tuple[int, ...]
    ops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Windows:
    """All windows in program order; `rest` are the places of the ops behind the last one that are in CONV anyhow."""

    windows: tuple[Window, ...]
    rest: tuple[int, ...]


def windows(cuts: Cuts, group: tuple[int, ...]) -> Windows:
    """The shortest windows; `group` is the number of each op's group in program order."""
    free_groups = cuts.everything & ~(cuts.conv_only | cuts.fc_only)
    free = list(members(free_groups))
    index = {number: at for at, number in enumerate(free)}
    places: dict[int, list[int]] = {number: [] for number in free}
    for place, number in enumerate(group):
        if number in index:
            places[number].append(place)
    # For each free group the first one that it doesn't depend on.
    lead = [index.get(_lowest(free_groups & ~cuts.earlier[number]), len(free)) for number in free]
    behind = list(accumulate(reversed(lead), min))[::-1]
    begins = list(accumulate((places[number][0] for number in reversed(free)), min))[::-1]
    ends = list(accumulate((places[number][-1] for number in free), max))
    found: list[Window] = []
    start = reached = 0
    for stop in range(1, len(free) + 1):
        if stop < len(free) and (behind[stop] < stop or begins[stop] < ends[stop - 1]):
            continue
        ops = [place for place in range(reached, ends[stop - 1] + 1) if not cuts.fc_only >> group[place] & 1]
        found.append(Window(tuple(free[start:stop]), tuple(ops)))
        start, reached = stop, ends[stop - 1] + 1
    rest = [place for place in range(reached, len(group)) if cuts.conv_only >> group[place] & 1]
    return Windows(tuple(found), tuple(rest))


def _lowest(groups: int) -> int:
    return (groups & -groups).bit_length() - 1
