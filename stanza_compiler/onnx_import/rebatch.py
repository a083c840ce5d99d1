"""Frees a graph of the batch size that it was exported for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

ATTEMPTS = 32
TOLERANCE = 1e-4
SMALLEST = 1e-6
"""What cancels out to less than this is rounding alone."""


@dataclass(slots=True)
class Rebatching:
    """One attempt: `stored` is the batch size in the file, `choices` which place each shape's batch takes.

    Where the batch of a shape stands can't always be told from its numbers; `open` counts the places there were.
    """

    stored: int
    choices: tuple[int, ...] = ()
    open: list[int] = field(default_factory=list)

    def axis(self, shape: Sequence[int | None], size: int, target: Sequence[int]) -> int | None:
        """The axis of `target`, a shape at the stored batch size, that holds the batch; None when none can.

        `shape` is the tensor's own, with one axis of None that is `size` at the stored batch size. The batch stays
        where it is in the order of the elements: (7, batch, 96) as (7, 1, 3, 32) is (7, batch, 3, 32), and as
        (7, 4, 24) it is (7, batch * 4, 24).
        """
        before = math.prod(other for other in shape[: shape.index(None)] if other is not None)
        places = [
            axis
            for axis, other in enumerate(target)
            if other % self.stored == 0
            and (prefix := math.prod(target[:axis])) % before == 0
            and before * size % prefix == 0
        ]
        if size == self.stored:  # it may also join the axis before it
            places += [
                axis
                for axis, other in enumerate(target)
                if other % self.stored == 0 and math.prod(target[: axis + 1]) == before * self.stored
            ]
        if not places:
            return None
        # Best an axis that was left for it, else one behind the same elements, rarely among the last one's features.
        likely = sorted(
            set(places),
            key=lambda axis: (
                target[axis] != self.stored,
                axis == len(target) - 1,
                math.prod(target[:axis]) != before,
                axis,
            ),
        )
        place = self.choices[len(self.open)] if len(self.open) < len(self.choices) else 0
        self.open.append(len(likely))
        return likely[min(place, len(likely) - 1)]

    def next(self) -> "Rebatching | None":
        """The attempt after this one: the last choice that is open falls on its next place."""
        taken = [*self.choices, *[0] * (len(self.open) - len(self.choices))][: len(self.open)]
        while taken and taken[-1] + 1 >= self.open[len(taken) - 1]:
            taken.pop()
        if not taken:
            return None
        return Rebatching(self.stored, (*taken[:-1], taken[-1] + 1))


def mixes(module: nn.Module, args: Sequence[torch.Tensor], axes: Sequence[int | None]) -> bool:
    """Whether the first or last sample of a batch gives alone something else than in the batch.

    `axes` are the batch axes of `args`.
    """
    count = next(arg.shape[axis] for arg, axis in zip(args, axes, strict=True) if axis is not None)
    whole = _outputs(module, args)
    for sample in {0, count - 1}:
        parts = [arg if axis is None else arg.narrow(axis, sample, 1) for arg, axis in zip(args, axes, strict=True)]
        alone = _outputs(module, parts)
        if not all(_is_part(one, other, sample, count) for one, other in zip(whole, alone, strict=True)):
            return True
    return False


def _outputs(module: nn.Module, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    was_training = module.training
    module.eval()
    with torch.no_grad():
        found: list[Any] = pytree.tree_leaves(module(*args))
    module.train(was_training)
    return found


def _is_part(together: torch.Tensor, alone: torch.Tensor, sample: int, count: int) -> bool:
    if count == 1:
        return True
    if together.dim() != alone.dim():
        return False
    moving = [axis for axis, (size, one) in enumerate(zip(together.shape, alone.shape, strict=True)) if size != one]
    if len(moving) != 1 or together.shape[moving[0]] != count * alone.shape[moving[0]]:
        return False
    share = alone.shape[moving[0]]
    part = together.narrow(moving[0], sample * share, share)
    if not alone.is_floating_point():
        return torch.equal(part, alone)
    largest = float(alone.abs().max()) if alone.numel() else 0.0
    return torch.allclose(part, alone, rtol=TOLERANCE, atol=max(TOLERANCE * largest, SMALLEST))
