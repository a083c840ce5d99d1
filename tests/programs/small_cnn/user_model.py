"""What the user's file of the small CNN defines beside the model."""

import os
import time

import torch
import torch.nn.functional as F
from torch import Tensor

LENGTH = 75


class Dataset:
    """75 random items; FAIL_ITEM=k: loading item k raises; HANG_ITEM=k: it takes 25 s; WIDE_RANK=r: rank r has
    labels of 32 bits.
    """

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.images = torch.randn(LENGTH, 3, 12, 12, generator=generator)
        self.labels = torch.randint(10, (LENGTH,), generator=generator)
        if os.environ.get("WIDE_RANK") == os.environ.get("RANK", "none"):
            self.labels = self.labels.int()

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
        if str(item) == os.environ.get("FAIL_ITEM"):
            raise OSError(f"item {item} can't be read")
        if str(item) == os.environ.get("HANG_ITEM"):
            time.sleep(25)
        return self.images[item], self.labels[item]


def make_dataset() -> Dataset:
    return Dataset()


def make_eval_dataset() -> Dataset:
    return Dataset()


def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


def make_optimizer(params: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3)


def make_scheduler(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
