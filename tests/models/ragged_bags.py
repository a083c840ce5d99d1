"""A small recommender whose users come as bags of any size: all ids of a batch in a row, and where each bag begins."""

import torch
from torch import nn
from torch.nn import functional as F

DTYPE = torch.float32


class RaggedBags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user = nn.EmbeddingBag(2000, 16, mode="sum", sparse=True)
        self.item = nn.EmbeddingBag(1500, 16, mode="mean", sparse=True)
        self.bottom = nn.Linear(13, 16)
        self.top = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense, users, user_off, user_w, items):
        u = self.user(users, user_off, per_sample_weights=user_w)
        i = self.item(items)
        return self.top(torch.cat([torch.relu(self.bottom(dense)), u, i], 1)).squeeze(1)


def build_model():
    return RaggedBags().to(DTYPE)


def example_inputs():
    dense, weights = torch.randn(4, 13, dtype=DTYPE), torch.rand(9, dtype=DTYPE)
    return dense, torch.randint(2000, (9,)), torch.tensor([0, 2, 2, 6]), weights, torch.randint(1500, (4, 3))


def example_targets():
    return torch.rand(4, dtype=DTYPE)


def loss_fn(outputs, targets):
    return F.binary_cross_entropy_with_logits(outputs, targets)


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


class Items:
    """22 items, each with 0 to 4 ids of a small range, so that ids come again; the last one has none."""

    bags = (2, 0, 3, 1, 4)

    def __len__(self) -> int:
        return 22

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(number)
        bag = self.bags[number % len(self.bags)]
        users, weights = torch.randint(60, (bag,), generator=generator), torch.rand(bag, generator=generator)
        dense, items = torch.randn(13, generator=generator), torch.randint(1500, (3,), generator=generator)
        return (dense.to(DTYPE), users, weights.to(DTYPE), items), (dense.sum() > 0).to(DTYPE)


def make_dataset():
    return Items()


def collate_fn(batch):
    inputs, targets = zip(*batch, strict=True)
    dense, users, weights, items = zip(*inputs, strict=True)
    sizes = torch.tensor([0, *map(len, users)])
    offsets = sizes.cumsum(0)[:-1]
    return (torch.stack(dense), torch.cat(users), offsets, torch.cat(weights), torch.stack(items)), torch.stack(targets)
