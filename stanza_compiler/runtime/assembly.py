"""The parts of several CONV ranks put together into what an FC segment takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .tree import unflatten
from .wires import Message, Wire


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one execution of an FC segment takes: tensors of `samples` samples from one or several ranks."""

    tensors: tuple[Tensor, ...]
    targets: Any
    samples: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor of a delivery, and whose it is: `shares` are (rank, offset, length) along `axis`.

    Length None means the whole tensor.
    """

    wire: int
    tensor: Tensor
    axis: int
    shares: tuple[tuple[int, int, int | None], ...]

    def pieces(self, gradient: Tensor) -> list[tuple[int, Tensor]]:
        """Each rank's slice of this leaf's gradient."""
        return [
            (rank, gradient if length is None else gradient.narrow(self.axis, offset, length))
            for rank, offset, length in self.shares
        ]


class Assembly:
    """One step's parts of the ranks of a block, empty ones left out.

    Parts that are batched along axis 0 are received into slices of one buffer. The parts become one delivery unless
    a per-rank tensor is among them, or the ranks bring different shapes: then each rank's part is a delivery of
    its own. A replicated tensor is the first rank's, for all deliveries.
    """

    def __init__(self, message: Message, ranks: Sequence[int], samples: Sequence[int], device: torch.device) -> None:
        """`samples` are the part sizes of all CONV ranks, not 0 for `ranks`."""
        self._message, self._ranks, self._samples, self._device = message, ranks, samples, device
        self._buffers: dict[int, Tensor] = {}
        self._parts: dict[int, list[Tensor]] = {}
        self.leaves: list[Leaf] = []

    def slots(self, rank: int, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """Where the tensors of `rank`, of these shapes, are to be received."""
        self._parts[rank] = [self._slot(index, rank, shape) for index, shape in enumerate(shapes)]
        return self._parts[rank]

    def join(self) -> list[Delivery]:
        """The deliveries, in rank order, once all slots are filled; `leaves` are the tensors in them."""
        if len(self._ranks) == 1 or all(self._is_mergeable(index, wire) for index, wire in enumerate(self._wires)):
            groups = [list(self._ranks)]
        else:
            groups = [[rank] for rank in self._ranks]
        first = self._ranks[0]
        shared = {
            index: self._leaf(index, self._parts[first][index], ((first, 0, None),))
            for index, wire in enumerate(self._wires)
            if wire.kind == "replicated"
        }
        return [self._delivery(members, shared) for members in groups]

    @property
    def _wires(self) -> tuple[Wire, ...]:
        return self._message.wires

    def _slot(self, index: int, rank: int, shape: tuple[int, ...]) -> Tensor:
        wire = self._wires[index]
        dtype = getattr(torch, wire.dtype)
        if wire.kind == "batched" and wire.batch_axis == 0:
            rows = shape[0] // self._samples[rank]
            whole = (rows * sum(self._samples[other] for other in self._ranks), *shape[1:])
            if index not in self._buffers:
                self._buffers[index] = torch.empty(whole, dtype=dtype, device=self._device)
            buffer = self._buffers[index]
            if buffer.shape == whole and shape[0] == rows * self._samples[rank]:
                start = rows * sum(self._samples[other] for other in self._ranks if other < rank)
                return buffer[start : start + shape[0]]
        return torch.empty(shape, dtype=dtype, device=self._device)

    def _is_mergeable(self, index: int, wire: Wire) -> bool:
        """Whether every rank brings the same number of rows per sample, and else the same sizes."""
        if wire.kind != "batched":
            return wire.kind == "replicated"
        forms = set()
        for rank, tensors in self._parts.items():
            sizes = list(tensors[index].shape)
            rows, odd = divmod(sizes.pop(wire.batch_axis), self._samples[rank])
            if odd:
                return False
            forms.add((rows, *sizes))
        return len(forms) == 1

    def _delivery(self, members: list[int], shared: dict[int, Leaf]) -> Delivery:
        tensors = tuple(
            (shared[index] if index in shared else self._joined(index, wire, members)).tensor
            for index, wire in enumerate(self._wires)
        )
        boundary = len(tensors) - self._message.target_tensors
        targets = unflatten(self._message.targets, tensors[boundary:])
        return Delivery(tensors[:boundary], targets, sum(self._samples[rank] for rank in members))

    def _joined(self, index: int, wire: Wire, members: list[int]) -> Leaf:
        pieces = [self._parts[rank][index] for rank in members]
        if len(members) == 1:
            return self._leaf(index, pieces[0], ((members[0], 0, None),))
        lengths = [piece.shape[wire.batch_axis] for piece in pieces]
        shares = tuple(
            (rank, sum(lengths[:number]), length)
            for number, (rank, length) in enumerate(zip(members, lengths, strict=True))
        )
        whole = self._buffers[index] if wire.batch_axis == 0 else torch.cat(pieces, wire.batch_axis)
        return self._leaf(index, whole, shares)

    def _leaf(self, index: int, tensor: Tensor, shares: tuple[tuple[int, int, int | None], ...]) -> Leaf:
        wire = self._wires[index]
        leaf = Leaf(index, tensor.detach().requires_grad_(wire.requires_grad), wire.batch_axis, shares)
        self.leaves.append(leaf)
        return leaf
