"""How long a rank would wait for its gradients' sums on a slow link, from what it did when they took no time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """`sum`: an allreduce of `size` bytes over `ranks` started; `wait`: for all of those; `update`: an optimiser's."""

    kind: str
    at_s: float
    size: int
    ranks: tuple[int, ...]


def steps_of(events: Sequence[Event], steps: int) -> list[list[Event]]:
    """The events of each step, which ends with the last of its updates: every step has as many.

    Raises ValueError where that doesn't come out even.
    """
    updates = sum(event.kind == "update" for event in events)
    if not updates or updates % steps:
        raise ValueError(f"{updates} updates in {steps} steps")
    found: list[list[Event]] = [[]]
    seen = 0
    for event in events:
        found[-1].append(event)
        seen += event.kind == "update"
        if event.kind == "update" and seen % (updates // steps) == 0:
            found.append([])
    return found[:steps]


def waits(events: Iterable[Event], ring_s: Callable[[int, tuple[int, ...]], float]) -> dict[tuple[int, ...], float]:
    """Seconds of waiting in one step for the sums over each group of ranks.

    The rank's link takes one sum after the other, each `ring_s(bytes, ranks)` long, while it computes; a wait moves
    all that follows.

    >>> events = [Event("sum", 0.0, 3, (0, 1)), Event("sum", 1.0, 1, (0, 1)), Event("wait", 2.0, 0, (0, 1))]
    >>> waits(events, lambda size, ranks: size)
    {(0, 1): 2.0}
    """
    found: dict[tuple[int, ...], float] = {}
    free_at: dict[tuple[int, ...], float] = {}
    link_free_at = float("-inf")
    late_s = 0.0
    for event in events:
        now = event.at_s + late_s
        if event.kind == "sum":
            link_free_at = max(link_free_at, now) + ring_s(event.size, event.ranks)
            free_at[event.ranks] = link_free_at
        elif event.kind == "wait":
            waited = max(0.0, free_at.get(event.ranks, now) - now)
            found[event.ranks] = found.get(event.ranks, 0.0) + waited
            late_s += waited
    return found
