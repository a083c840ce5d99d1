"""AlexNet: nearly all computation in five convolutions, nearly all parameters in three Linear layers."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import alexnet


def build_model() -> nn.Module:
    return alexnet(weights=None)


def example_inputs() -> tuple[Tensor]:
    """A small batch is enough to compile; --batch-size says what to train with."""
    return (torch.randn(4, 3, 224, 224),)


def example_targets() -> Tensor:
    """The first and the last class among them: synthetic labels are drawn from this range."""
    return torch.tensor([0, 333, 666, 999])


def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


def make_optimizer(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.01, momentum=0.9)
