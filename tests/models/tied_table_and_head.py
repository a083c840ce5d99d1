"""One matrix is the table in front and the head behind, a convolution with a residual stands between them."""

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, TOKENS = 500, 24, 12


class TiedTableAndHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 5, padding=2)
        self.norm = nn.LayerNorm(WIDTH)
        self.lm = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm.weight = self.emb.weight

    def forward(self, ids):
        h = self.emb(ids)
        h = h + F.gelu(self.conv(h.transpose(1, 2))).transpose(1, 2)
        return self.lm(self.norm(h))


def build_model():
    return TiedTableAndHead()


def example_inputs():
    return (torch.randint(VOCABULARY, (3, TOKENS)),)


def example_targets():
    return torch.randint(VOCABULARY, (3, TOKENS))


def loss_fn(outputs, targets):
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


class Items:
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.ids = torch.randint(VOCABULARY, (22, TOKENS), generator=generator)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index):
        return self.ids[index], self.ids[index].roll(-1)


def make_dataset():
    return Items()
