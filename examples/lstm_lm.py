"""A language model with an LSTM between a table of tokens and a softmax over as many, each a matrix of its own."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH = 8
TOKENS = 32
VOCABULARY = 30_000
WIDTH = 200


class LstmLm(nn.Module):
    """12 million of its 12.7 million parameters are the two matrices (Zaremba et al. 2014, the small model's width)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.table(ids))[0])


def build_model() -> nn.Module:
    return LstmLm()


def example_inputs() -> tuple[Tensor]:
    """Token numbers; synthetic ones are drawn from the range of these."""
    return (torch.linspace(0, VOCABULARY - 1, BATCH * TOKENS).long().reshape(BATCH, TOKENS),)


def example_targets() -> Tensor:
    return example_inputs()[0].roll(-1, 1)


def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def make_optimizer(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)
