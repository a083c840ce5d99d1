"""Two inputs: an image for the convolutions, a table row of category numbers that only the FC side reads."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH = 8
COLUMNS = 8
CATEGORIES = 20_000


class TwoTower(nn.Module):
    """The embedding's 640,000 parameters belong on the FC side, so a row travels straight to the FC hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.image_tower = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.image_head = nn.Linear(64 * 8 * 8, 512)
        self.categories = nn.Embedding(CATEGORIES, 32)
        self.classifier = nn.Sequential(nn.Linear(512 + COLUMNS * 32, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, image: Tensor, row: Tensor) -> Tensor:
        seen = F.relu(self.image_head(torch.flatten(self.image_tower(image), 1)))
        read = torch.flatten(self.categories(row), 1)
        return self.classifier(torch.cat((seen, read), 1))


def build_model() -> nn.Module:
    return TwoTower()


def example_inputs() -> tuple[Tensor, Tensor]:
    """An image and a row; synthetic rows are drawn from the range of the numbers in this one."""
    row = torch.linspace(0, CATEGORIES - 1, BATCH * COLUMNS).long().reshape(BATCH, COLUMNS)
    return torch.randn(BATCH, 3, 32, 32), row


def example_targets() -> Tensor:
    return torch.arange(BATCH)


def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


def make_optimizer(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)
