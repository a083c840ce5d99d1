"""Hosts of a sharded stage as threads of one process."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

from torch import Tensor

from stanza_compiler.runtime.peers import Peers

T = TypeVar("T")


class ThreadPeers(Peers):
    """Exchanges by a table in memory: row i is what host i sends."""

    def __init__(self, place: int, count: int, table: list[Sequence[Tensor]], barrier: Barrier) -> None:
        super().__init__(place, range(count), None)
        self._table, self._barrier = table, barrier

    def _exchange(self, there: Sequence[Tensor], here: list[Tensor]) -> list[Tensor]:
        self._table[self.place] = there
        self._barrier.wait(30)
        for other in range(self.count):
            assert here[other].shape == self._table[other][self.place].shape
            here[other] = self._table[other][self.place].clone()
        self._barrier.wait(30)
        return here


def on_hosts(count: int, work: Callable[[Peers], T]) -> list[T]:
    """What `work` gives on each of `count` hosts."""
    table: list[Sequence[Tensor]] = [()] * count
    barrier = Barrier(count)
    peers = [ThreadPeers(place, count, table, barrier) for place in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, peers))
