"""When each rank does what in a step that is cut into micro-batches: its schedule with seconds put to it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stanza_compiler.runtime.layout import Layout
from stanza_compiler.runtime.schedule import Action, Kind, schedule


@dataclass(frozen=True, slots=True)
class Seconds:
    """What a micro-batch takes: computing, and from the last sender to the host (`up`) or back; `late` once a step."""

    forward: float
    up: float
    fc_forward: float
    fc_backward: float
    down: float
    backward: float
    late: float = 0.0


@dataclass(frozen=True, slots=True)
class Span:
    """An action of a rank that takes time, from `start` to `stop` in seconds since the step began."""

    rank: int
    action: Action
    start: float
    stop: float


def schedules(layout: Layout, micro_batches: int, *, count_first: bool = False) -> dict[int, Iterator[Action]]:
    """The schedule of each rank."""
    return {
        rank: schedule(micro_batches, conv=layout.is_conv(rank), host=rank in layout.hosts, count_first=count_first)
        for rank in range(layout.world_size)
    }


def simulate(layout: Layout, actions: Mapping[int, Iterator[Action]], seconds: Seconds) -> list[Span]:
    """The computing of a step, by rank in order of time.

    A message is a rendezvous: it travels once its sender has sent it and its receiver has made room for it. A host's
    link carries one micro-batch after the other, each way. Raises RuntimeError naming the ranks that wait for each
    other for ever.
    """
    return _Simulation(layout, actions, seconds).run()


class _Simulation:
    def __init__(self, layout: Layout, actions: Mapping[int, Iterator[Action]], seconds: Seconds) -> None:
        self._layout, self._seconds = layout, seconds
        self._actions = {rank: list(some) for rank, some in actions.items()}
        self._clock = dict.fromkeys(actions, 0.0)
        self._sent: dict[tuple[int, int], float] = {}
        self._room: dict[tuple[int, int], float] = {}
        self._returned: dict[tuple[int, int], float] = {}
        self._up_free = dict.fromkeys(layout.hosts, 0.0)
        self._down_free = dict.fromkeys(layout.hosts, 0.0)
        self._spans: list[Span] = []

    def run(self) -> list[Span]:
        while any(self._actions.values()):
            moved = [rank for rank, some in self._actions.items() if some and self._do(rank, some[0])]
            for rank in moved:
                self._actions[rank].pop(0)
            if not moved:
                waiting = ", ".join(
                    f"rank {rank} for {some[0].kind.name} {some[0].micro}"
                    for rank, some in self._actions.items()
                    if some
                )
                raise RuntimeError(f"nobody can go on: {waiting}")
        return sorted(self._spans, key=lambda span: (span.rank, span.start))

    def _do(self, rank: int, action: Action) -> bool:
        """Do it if what it waits for is there; whether it was done."""
        kind, micro = action
        match kind:
            case Kind.FORWARD:
                self._compute(rank, action, self._seconds.forward)
            case Kind.SEND:
                self._sent[rank, micro] = self._clock[rank]
            case Kind.EXPECT:
                self._room[rank, micro] = self._clock[rank]
            case Kind.RECEIVE:
                return self._receive(rank, micro)
            case Kind.FC_FORWARD:
                self._compute(rank, action, self._seconds.fc_forward)
            case Kind.FC_BACKWARD:
                self._compute(rank, action, self._seconds.fc_backward)
                self._return(rank, micro)
            case Kind.COLLECT:
                host = self._layout.host_of(rank)
                if (host, micro) not in self._returned:
                    return False
                if host != rank:
                    self._clock[rank] = max(self._clock[rank], self._returned[host, micro])
            case Kind.BACKWARD:
                self._compute(rank, action, self._seconds.backward)
            case Kind.LATE:
                self._compute(rank, action, self._seconds.late)
        return True

    def _compute(self, rank: int, action: Action, seconds: float) -> None:
        start = self._clock[rank]
        self._clock[rank] = start + seconds
        if seconds:
            self._spans.append(Span(rank, action, start, start + seconds))

    def _receive(self, host: int, micro: int) -> bool:
        others = [rank for rank in self._layout.block_of(host) if rank != host]
        if (host, micro) not in self._room or any((rank, micro) not in self._sent for rank in others):
            return False
        if others:
            sent = max(self._sent[rank, micro] for rank in others)
            self._up_free[host] = max(self._room[host, micro], sent, self._up_free[host]) + self._seconds.up
            self._clock[host] = max(self._clock[host], self._up_free[host])
        return True

    def _return(self, host: int, micro: int) -> None:
        start = max(self._clock[host], self._down_free[host])
        self._returned[host, micro] = self._down_free[host] = start + self._seconds.down
