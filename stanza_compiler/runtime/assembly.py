"""The parts of several CONV ranks put together into what an FC segment takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .shares import Shared, in_a_row
from .tree import unflatten
from .wires import Message, Wire


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one execution of an FC segment takes: tensors by name, of the `samples` of one or several ranks."""

    tensors: dict[str, Tensor]
    targets: Any
    samples: dict[int, int]


class Assembly:
    """One step's parts of the ranks of a block, empty ones left out.

    Parts that are batched along axis 0 are received into slices of one buffer. The parts become one delivery unless
    a per-rank tensor is among them, or the ranks bring different shapes: then each rank's part is a delivery of
    its own. A replicated tensor is the first rank's, for all deliveries. To what a message brought the host adds
    what it kept of an earlier segment.
    """

    def __init__(
        self, message: Message, samples: Mapping[int, int], device: torch.device, *, kept: Sequence[Wire] = ()
    ) -> None:
        """`samples` are the part sizes by rank, none of them 0."""
        self._message, self._samples, self._device = message, samples, device
        self._wires = (*message.wires, *kept)
        self._buffers: dict[int, Tensor] = {}
        self._parts: dict[int, list[Tensor]] = {}
        self.leaves: list[Shared] = []

    def slots(self, rank: int, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """Where the tensors of `rank`, of these shapes, are to be received."""
        self._parts[rank] = [self._slot(index, rank, shape) for index, shape in enumerate(shapes)]
        return list(self._parts[rank])

    def keep(self, rank: int, tensors: Sequence[Tensor]) -> None:
        """Add the part of `rank` of what the host kept, once its slots are given."""
        parts = self._parts[rank]
        for tensor in tensors:
            slot = self._slot(len(parts), rank, tuple(tensor.shape))
            slot.copy_(tensor.detach())
            parts.append(slot)

    def part(self, rank: int, wire: int) -> Tensor:
        """What `rank` brought, or the first rank for all."""
        return self._parts[rank if self._wires[wire].kind != "replicated" else next(iter(self._samples))][wire]

    def join(self, *, apart: bool = False) -> list[Delivery]:
        """The deliveries, in rank order, once all slots are filled; `leaves` are the tensors in them.

        `apart` asks for one per rank.
        """
        ranks = list(self._samples)
        if not apart and all(self._is_mergeable(index, wire) for index, wire in enumerate(self._wires)):
            groups = [ranks]
        else:
            groups = [[rank] for rank in ranks]
        first = ranks[0]
        shared = {
            index: self._leaf(index, self._parts[first][index], ((first, 0, None),))
            for index, wire in enumerate(self._wires)
            if wire.kind == "replicated"
        }
        return [self._delivery(members, shared) for members in groups]

    def _slot(self, index: int, rank: int, shape: tuple[int, ...]) -> Tensor:
        wire = self._wires[index]
        dtype = getattr(torch, wire.dtype)
        if wire.kind == "batched" and wire.batch_axis == 0:
            rows = shape[0] // self._samples[rank]
            whole = (rows * sum(self._samples.values()), *shape[1:])
            if index not in self._buffers:
                self._buffers[index] = torch.empty(whole, dtype=dtype, device=self._device)
            buffer = self._buffers[index]
            if buffer.shape == whole and shape[0] == rows * self._samples[rank]:
                start = rows * sum(self._samples[other] for other in self._samples if other < rank)
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

    def _delivery(self, members: list[int], shared: dict[int, Shared]) -> Delivery:
        tensors = tuple(
            (shared[index] if index in shared else self._joined(index, wire, members)).tensor
            for index, wire in enumerate(self._wires)
        )
        start, stop = len(self._message.wires) - self._message.target_tensors, len(self._message.wires)
        taken = {
            wire.name: tensor
            for index, (wire, tensor) in enumerate(zip(self._wires, tensors, strict=True))
            if not start <= index < stop
        }
        targets = unflatten(self._message.targets, tensors[start:stop])
        return Delivery(taken, targets, {rank: self._samples[rank] for rank in members})

    def _joined(self, index: int, wire: Wire, members: list[int]) -> Shared:
        pieces = [self._parts[rank][index] for rank in members]
        if len(members) == 1:
            return self._leaf(index, pieces[0], ((members[0], 0, None),))
        lengths = [piece.shape[wire.batch_axis] for piece in pieces]
        shares = in_a_row(members, lengths)
        whole = self._buffers[index] if wire.batch_axis == 0 else torch.cat(pieces, wire.batch_axis)
        return self._leaf(index, whole, shares)

    def _leaf(self, index: int, tensor: Tensor, shares: tuple[tuple[int, int, int | None], ...]) -> Shared:
        wire = self._wires[index]
        leaf = Shared(tensor.detach().requires_grad_(wire.requires_grad), wire.batch_axis, shares, index)
        self.leaves.append(leaf)
        return leaf
