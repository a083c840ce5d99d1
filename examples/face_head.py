"""Face identification: a small convolutional backbone under a classifier of 200,000 people, for sharded FC hosts.

The classifier holds 99.9% of the parameters and most of the computation: one host could neither hold nor compute it as
fast as several that have some of the people each. `FACE_CLASSES` in the environment makes it smaller.
"""

import os
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH = 32
WIDTH = 256
CLASSES = int(os.environ.get("FACE_CLASSES", "200000"))


class FaceHead(nn.Module):
    """Images [B, 3, 32, 32] to one score a person; the embedding before it is what recognises faces later."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, WIDTH, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.people = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.people(self.backbone(images))


def build_model() -> nn.Module:
    return FaceHead()


def example_inputs() -> tuple[Tensor]:
    return (torch.rand(BATCH, 3, 32, 32),)


def example_targets() -> Tensor:
    """People from the first to the last: synthetic targets are drawn from this range."""
    return torch.linspace(0, CLASSES - 1, BATCH).long()


def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


def make_optimizer(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)
