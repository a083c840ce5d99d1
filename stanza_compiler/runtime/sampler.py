"""Which items a step trains on, the same on every layout."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from .layout import split_evenly
from .seeds import seed_from


@dataclass(frozen=True, slots=True)
class Order:
    """The order of data: a step takes the next `global_batch_size` of `length` items.

    An epoch ends with a short batch; the next step starts at item 0 again. `length` None means items without
    end (synthetic ones), in order. Steps count from 1.
    """

    length: int | None
    global_batch_size: int
    seed: int
    shuffle: bool

    @property
    def steps_per_epoch(self) -> int:
        assert self.length is not None
        return -(-self.length // self.global_batch_size)

    def items(self, step: int) -> tuple[int, ...]:
        """The item numbers of one step.

        >>> Order(5, 2, 0, False).items(3), Order(5, 2, 0, False).items(4)
        ((4,), (0, 1))
        """
        if self.length is None:
            start = (step - 1) * self.global_batch_size
            return tuple(range(start, start + self.global_batch_size))
        epoch, index = divmod(step - 1, self.steps_per_epoch)
        start = index * self.global_batch_size
        stop = min(start + self.global_batch_size, self.length)
        if not self.shuffle:
            return tuple(range(start, stop))
        return tuple(_permutation(self.seed, epoch, self.length)[start:stop].tolist())


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, length: int) -> torch.Tensor:
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed_from(seed, epoch)))


def cut_into(micro_batches: int, parts: Sequence[tuple[int, ...]]) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """By micro-batch each CONV rank's items: its part in consecutive pieces, the last ones empty where it is short.

    >>> cut_into(2, ((7, 8, 9), (4,)))
    (((7, 8), (4,)), ((9,), ()))
    """
    return tuple(zip(*(split_items(part, micro_batches) for part in parts), strict=True))


def split_items(items: tuple[int, ...], parts: int) -> tuple[tuple[int, ...], ...]:
    """Each CONV rank's items, as numpy.array_split parts them.

    >>> split_items((7, 8, 9), 2), split_items((7,), 2)
    (((7, 8), (9,)), ((7,), ()))
    """
    return tuple(items[part.start : part.stop] for part in split_evenly(len(items), parts))
