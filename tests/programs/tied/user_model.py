"""A loss over valid tokens, as (sum, count); RAGGED=1: items of different length, padded within a rank's part."""

import os

import torch
import torch.nn.functional as F
from torch import Tensor

LENGTH = 22


def make_dataset() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(50, (LENGTH, 7), generator=generator)
    labels = torch.randint(50, (LENGTH, 7), generator=generator)
    labels[torch.rand(LENGTH, 7, generator=generator) < 0.3] = -1
    if "RAGGED" not in os.environ:
        return [(ids[k], labels[k]) for k in range(LENGTH)]
    return [(ids[k, : 3 + k % 5], labels[k, : 3 + k % 5]) for k in range(LENGTH)]


def collate_fn(items: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    ids, labels = zip(*items, strict=True)
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(list(ids), batch_first=True), pad(list(labels), batch_first=True, padding_value=-1)


def loss_fn(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    total = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
    return total, (targets != -1).sum()


def make_optimizer(named_parameters: list[tuple[str, Tensor]]) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD([parameter for _, parameter in named_parameters], lr=0.1, momentum=0.9)

    def check(*_: object) -> None:
        for name, parameter in named_parameters:
            assert parameter.grad is None or parameter.grad.is_sparse == (name == "shift.weight"), name

    optimizer.register_step_pre_hook(check)
    return optimizer
