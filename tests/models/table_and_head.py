"""Heavy in parameters at both ends: a table in front, a head behind, convolutions between them."""

import torch
from torch import nn

VOCABULARY, WIDTH, TOKENS = 800, 16, 32


class TableAndHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        layers = (layer for _ in range(4) for layer in (nn.Conv1d(WIDTH, WIDTH, 5, padding=2), nn.GELU()))
        self.body = nn.Sequential(*layers)
        self.lm = nn.Linear(WIDTH, VOCABULARY)
        for layer in self.body[::2]:
            nn.init.normal_(layer.weight, std=0.2)  # as torch has them, the table's gradient nearly vanishes

    def forward(self, ids):
        return self.lm(self.body(self.emb(ids).transpose(1, 2)).transpose(1, 2))


def build_model():
    return TableAndHead()


def example_inputs():
    return (torch.randint(VOCABULARY, (4, TOKENS)),)


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)


class Items:
    """The loss is the mean square of the output: targets are not looked at."""

    def __init__(self) -> None:
        self.ids = torch.randint(VOCABULARY, (22, TOKENS), generator=torch.Generator().manual_seed(5))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index):
        return self.ids[index], 0


def make_dataset():
    return Items()
