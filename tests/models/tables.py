"""A small recommender: sparse tables in front, layers and interactions behind them, one value a sample."""

import torch
from torch import nn
from torch.nn import functional as F

ROWS, WIDTH = (900, 700, 500), 8


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True) for rows in ROWS)
        self.bottom = nn.Linear(5, WIDTH)
        self.top = nn.Linear(16, 1)

    def forward(self, dense, sparse):
        rows = [torch.relu(self.bottom(dense)), *(table(sparse[:, k]) for k, table in enumerate(self.tables))]
        stacked = torch.stack(rows, 1)
        pairs = torch.bmm(stacked, stacked.transpose(1, 2))
        return self.top(pairs.flatten(1)).squeeze(1)


def build_model():
    return Tables()


def example_inputs():
    return torch.randn(4, 5), torch.randint(500, (4, 3, 6))


def example_targets():
    return torch.rand(4)


def loss_fn(outputs, targets):
    return F.binary_cross_entropy_with_logits(outputs, targets)


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


class Items:
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.dense = torch.randn(29, 5, generator=generator)
        self.sparse = torch.randint(500, (29, 3, 6), generator=generator)
        self.targets = torch.rand(29, generator=generator)

    def __len__(self) -> int:
        return len(self.dense)

    def __getitem__(self, index):
        return (self.dense[index], self.sparse[index]), self.targets[index]


def make_dataset():
    return Items()
