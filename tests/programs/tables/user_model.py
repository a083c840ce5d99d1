"""What the user's file of the small click model defines beside the model; COUNTED=1: the loss is (sum, count)."""

import os

import torch
import torch.nn.functional as F
from torch import Tensor

LENGTH = 22


def make_dataset() -> list[tuple[tuple[Tensor, Tensor], Tensor]]:
    generator = torch.Generator().manual_seed(6)
    words = torch.randint(40, (LENGTH, 4), generator=generator)
    x = torch.randn(LENGTH, 3, generator=generator)
    labels = torch.randint(3, (LENGTH,), generator=generator)
    return [((words[k], x[k]), labels[k]) for k in range(LENGTH)]


def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    if "COUNTED" in os.environ:
        return F.cross_entropy(outputs, targets, ignore_index=0, reduction="sum"), (targets != 0).sum()
    return F.cross_entropy(outputs, targets)


def make_optimizer(named_parameters: list[tuple[str, Tensor]]) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD([parameter for _, parameter in named_parameters], lr=0.1, momentum=0.9)

    def check(*_: object) -> None:
        for name, parameter in named_parameters:
            assert parameter.grad is None or parameter.grad.is_sparse == (name == "bags.weight"), name

    optimizer.register_step_pre_hook(check)
    return optimizer
