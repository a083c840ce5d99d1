"""One tensor that belongs to several ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import DisagreementError
from .plan_file import Crossing


@dataclass(frozen=True, slots=True)
class Shared:
    """A tensor of a host, and whose it is: `shares` are (rank, offset, length) along `axis`, in rank order.

    Length None means the whole tensor. `wire` is the place of a received tensor in its message.
    """

    tensor: Tensor
    axis: int
    shares: tuple[tuple[int, int, int | None], ...]
    wire: int = -1

    def pieces(self, tensor: Tensor) -> list[tuple[int, Tensor]]:
        """Each rank's slice of `tensor`, which is this one or its gradient."""
        return [
            (rank, tensor if length is None else tensor.narrow(self.axis, offset, length))
            for rank, offset, length in self.shares
        ]

    def gradient(self, pieces: Mapping[int, Tensor]) -> Tensor | None:
        """The inverse of `pieces`: slices one after the other, or the sum where every rank has the whole.

        Zero for ranks without a piece, None when no rank has one.
        """
        own = [pieces.get(rank) for rank, _, _ in self.shares]
        found = [piece for piece in own if piece is not None]
        if not found:
            return None
        if any(length is None for _, _, length in self.shares):
            return found[0] if len(found) == 1 else torch.stack(found).sum(0)
        whole = self.pieces(self.tensor.detach())
        rows = [torch.zeros_like(part) if piece is None else piece for piece, (_, part) in zip(own, whole, strict=True)]
        return torch.cat(rows, self.axis)


def share_out(tensor: Tensor, crossing: Crossing, samples: Mapping[int, int], name: str) -> Shared:
    """What one execution gave, shared among the ranks whose `samples` it ran on.

    Raises DisagreementError when a batched tensor has no whole number of rows per sample.
    """
    axis = crossing.batch_axis or 0
    if len(samples) == 1 or crossing.kind == "replicated":
        return Shared(tensor, axis, tuple((rank, 0, None) for rank in samples))
    assert crossing.kind == "batched", name
    rows, odd = divmod(tensor.shape[axis], sum(samples.values()))
    if odd:
        raise DisagreementError(
            f"'{name}' has {tensor.shape[axis]} rows along axis {axis} for {sum(samples.values())} samples"
        )
    lengths = [rows * count for count in samples.values()]
    return Shared(tensor, axis, in_a_row(list(samples), lengths))


def in_a_row(ranks: Sequence[int], lengths: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """(rank, offset, length) of parts that stand one after the other.

    >>> in_a_row([4, 5], [3, 2])
    ((4, 0, 3), (5, 3, 2))
    """
    offsets = [sum(lengths[:number]) for number in range(len(lengths))]
    return tuple(zip(ranks, offsets, lengths, strict=True))
