"""Who is who: which ranks train CONV, which host FC, whose activations go where."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise


@dataclass(frozen=True)
class Layout:
    """`conv_workers` ranks train CONV (or the whole model, when `placement` is data-parallel).

    CONV worker i is rank i. Host j owns block j of the CONV ranks: contiguous, the first
    conv_workers mod fc_workers blocks one larger.

        dedicated 3 + 2:  ranks 0 1 | 2 -> hosts 3, 4        colocated 3, 2 hosts:  ranks 0 1 | 2 -> hosts 0, 2

    Sharded hosts are those of colocated ones, but every host serves all CONV ranks.
    """

    conv_workers: int
    fc_workers: int
    placement: str

    @property
    def world_size(self) -> int:
        return self.conv_workers + (self.fc_workers if self.placement == "dedicated" else 0)

    @cached_property
    def blocks(self) -> tuple[range, ...]:
        """The CONV ranks of each host."""
        return tuple(split_evenly(self.conv_workers, self.fc_workers)) if self.fc_workers else ()

    @cached_property
    def hosts(self) -> tuple[int, ...]:
        """The rank of each host."""
        if self.placement == "dedicated":
            return tuple(range(self.conv_workers, self.world_size))
        return tuple(block.start for block in self.blocks)

    def is_conv(self, rank: int) -> bool:
        return rank < self.conv_workers

    def block_of(self, host: int) -> range:
        """The CONV ranks that the host with rank `host` serves."""
        return self.blocks[self.hosts.index(host)]

    def host_of(self, conv_rank: int) -> int:
        """The rank of the host that serves `conv_rank`."""
        return next(host for host, block in zip(self.hosts, self.blocks, strict=True) if conv_rank in block)

    def describe(self, rank: int) -> str:
        """What `rank` does, for messages: `conv 1`, `fc host 0`, `conv 0 and fc host 0`."""
        if not self.hosts:
            return f"worker {rank}"
        roles = [f"conv {rank}"] if self.is_conv(rank) else []
        roles += [f"fc host {index}" for index, host in enumerate(self.hosts) if host == rank]
        return " and ".join(roles)

    def __str__(self) -> str:
        if self.placement == "dedicated":
            return f"{self.conv_workers} conv + {self.fc_workers} fc, dedicated"
        if self.placement == "colocated":
            return f"{self.conv_workers} conv, {self.fc_workers} of them also fc, colocated"
        if self.placement == "sharded":
            return f"{self.conv_workers} conv, fc sharded over {self.fc_workers} of them"
        return f"{self.conv_workers} workers, data-parallel"


def split_evenly(length: int, parts: int) -> list[range]:
    """Ranges of 0..length-1 as numpy.array_split makes them; the last ones may be empty.

    >>> split_evenly(5, 3)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    size, larger = divmod(length, parts)
    starts = [index * size + min(index, larger) for index in range(parts + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]
