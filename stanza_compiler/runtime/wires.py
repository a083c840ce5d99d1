"""The form of what crosses into a segment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .codecs import is_coded
from .errors import DisagreementError
from .plan_file import Crossing


@dataclass(frozen=True, slots=True)
class Wire:
    """One tensor of a message: all that is fixed over the steps."""

    name: str
    dtype: str
    axes: int
    kind: str
    batch_axis: int
    requires_grad: bool

    def __str__(self) -> str:
        gradient = "with gradient" if self.requires_grad else "without gradient"
        return f"'{self.name}' {self.dtype} of {self.axes} axes, {gradient}"


@dataclass(frozen=True, slots=True)
class Message:
    """What crosses into a segment in one step: boundary tensors, then the tensors of `targets` (Slots)."""

    wires: tuple[Wire, ...]
    targets: Any
    target_tensors: int

    @property
    def gradients(self) -> tuple[int, ...]:
        """The wires whose gradient comes back."""
        return tuple(index for index, wire in enumerate(self.wires) if wire.requires_grad)

    def coded(self, codec: str) -> Mapping[int, torch.dtype]:
        """The boundary tensors that `codec` changes on their way, with their own dtype."""
        dtypes = [getattr(torch, wire.dtype) for wire in self.wires[: len(self.wires) - self.target_tensors]]
        return {
            index: dtype
            for index, (wire, dtype) in enumerate(zip(self.wires, dtypes, strict=False))
            if is_coded(codec, dtype, wire.axes, wire.batch_axis)
        }


def describe_wires(
    values: Mapping[str, Tensor], target_tensors: Sequence[Tensor], boundary: Mapping[str, Crossing]
) -> tuple[Wire, ...]:
    """The wires of boundary tensors, whose kinds are in `boundary`, then those of target tensors."""
    wires = [_wire(name, value, boundary[name].kind, boundary[name].batch_axis) for name, value in values.items()]
    for index, target in enumerate(target_tensors):
        wires.append(_wire(f"target {index}", target, "batched" if target.dim() else "per-rank", 0))
    return tuple(wires)


def check_values(wires: Sequence[Wire], values: Sequence[Tensor]) -> None:
    """Raise DisagreementError when a tensor is not of the agreed form: the host would read it as another."""
    for wire, value in zip(wires, values, strict=True):
        found = _wire(wire.name, value, wire.kind, wire.batch_axis)
        if found != wire:
            raise DisagreementError(f"boundary tensor {found} was agreed on as {wire}")


def check_targets(agreed: Any, found: Any) -> None:
    """Raise DisagreementError when what is no tensor in the targets has changed: the host has what was agreed on."""
    try:
        is_same = bool(found == agreed)
    except (ValueError, RuntimeError, TypeError):  # arrays and the like compare element by element
        is_same = False
    if not is_same:
        what = f"targets {found} were agreed on as {agreed}, where Slots are tensors"
        raise DisagreementError(f"{what}: what changes from batch to batch has to be a tensor")


def is_sender(wire: Wire, rank: int, block: range, samples: Sequence[int]) -> bool:
    """Whether `rank` sends this wire: of a replicated tensor its host gets one copy, from its first working rank."""
    return wire.kind != "replicated" or rank == next(other for other in block if samples[other])


def _wire(name: str, value: Tensor, kind: str, batch_axis: int | None) -> Wire:
    dtype = str(value.dtype).removeprefix("torch.")
    return Wire(name, dtype, value.dim(), kind, batch_axis or 0, value.requires_grad)
