"""What a step minimises: the user's loss, weighed so that parts of a batch add up to the whole."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .program import Hooks
from .tree import tensors_of


@dataclass(frozen=True, slots=True)
class Loss:
    """A sum over samples (or tokens) with its graph, and how many there were.

    `counted` says that the user's loss_fn gave the pair itself; else `count` is the number of samples.
    """

    total: Tensor
    count: float
    counted: bool

    def __add__(self, other: "Loss") -> "Loss":
        return Loss(self.total + other.total, self.count + other.count, self.counted)

    def detached(self) -> "Loss":
        """The same without its graph."""
        return Loss(self.total.detach(), self.count, self.counted)

    @property
    def value(self) -> float:
        return float(self.total.detach())

    def mean_over(self, count: float) -> Tensor:
        """This part's share of the mean over `count` samples (or tokens); 0 when there is nothing to learn from."""
        return self.total / count if count else self.total * 0.0


def measure(hooks: Hooks, outputs: Any, targets: Any, *, samples: int) -> Loss:
    """The loss of `samples` samples: loss_fn's, else the output's own scalar `loss`, else mean |o|^2.

    Raises ValueError when there is nothing to take a loss of.
    """
    value = _own_loss(outputs) if hooks.loss_fn is None else hooks.loss_fn(outputs, targets)
    if isinstance(value, (tuple, list)):
        total, count = value
        return Loss(total, float(count), counted=True)
    return Loss(value * samples, float(samples), counted=False)


def _own_loss(outputs: Any) -> Tensor:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if isinstance(loss, Tensor) and loss.dim() == 0:
        return loss
    floating = [tensor for tensor in tensors_of(outputs) if tensor.is_floating_point() or tensor.is_complex()]
    if not floating:
        raise ValueError("the output holds no floating tensor to make a loss of; define loss_fn")
    return torch.stack([_mean_square(tensor) for tensor in floating]).sum()


def _mean_square(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor).square().sum(-1).mean() if tensor.is_complex() else tensor.square().mean()
