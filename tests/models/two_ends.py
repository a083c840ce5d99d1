"""A small language model: one tied matrix as table and head, attention and a convolution between them."""

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, TOKENS = 3000, 16, 8


class TwoEnds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.body = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        h = self.table(ids) + self.places(torch.arange(ids.size(1), device=ids.device))
        for _ in range(2):
            h = h + torch.softmax(h @ h.transpose(1, 2), -1) @ h
            h = h + torch.tanh(self.body(h.transpose(1, 2))).transpose(1, 2)
        return self.head(h)


def build_model():
    return TwoEnds()


def example_inputs():
    return (torch.randint(VOCABULARY, (4, TOKENS)),)


def example_targets():
    return torch.randint(VOCABULARY, (4, TOKENS))


def loss_fn(outputs, targets):
    """(sum, count) over the targets that are not padding."""
    valid = targets >= 0
    return F.cross_entropy(outputs[valid], targets[valid], reduction="sum"), valid.sum()


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


class Items:
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.ids = torch.randint(VOCABULARY, (29, TOKENS), generator=generator)
        self.targets = torch.randint(-VOCABULARY // 4, VOCABULARY, (29, TOKENS), generator=generator)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index):
        return self.ids[index], self.targets[index]


def make_dataset():
    return Items()
