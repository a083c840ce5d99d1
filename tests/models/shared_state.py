"""Tied and frozen parameters, bare parameters, buffers of both kinds, a module used twice and one never used."""

import torch
from torch import nn
from torch.nn import functional as F


class SharedState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((6,), 1.5))
        self.register_buffer("table", torch.linspace(0.5, 1.5, 24))
        self.register_buffer("mask", torch.tensor([1.0, 0.0] * 12), persistent=False)
        self.frozen = nn.Conv1d(1, 6, 3, padding=1).requires_grad_(False)
        self.conv = nn.Conv1d(6, 6, 3, padding=1)
        self.shared = nn.Linear(24, 24)
        self.act = nn.ReLU()
        self.steps = nn.ModuleList([self.act, nn.Dropout(0.25)])
        self.unused = nn.Linear(3, 3)
        self.wide = nn.Linear(144, 400)
        self.narrow = nn.Linear(400, 144)
        self.tied = nn.Linear(400, 144, bias=False)
        self.tied.weight = self.narrow.weight
        self.narrow.bias.requires_grad_(False)

    def forward(self, x, late):
        h = self.act(self.conv(self.frozen(x * self.table)))
        h = h * self.scale[:, None] * self.mask
        h = self.shared(self.shared(h)).flatten(1)
        h = self.steps[1](self.act(self.wide(h)))
        h = self.narrow(h) + self.tied(h) + late
        return F.log_softmax(h.view(-1, 6, 24) * self.table, dim=-1)


def build_model():
    return SharedState()


def example_inputs():
    return (torch.randn(4, 1, 24), torch.randn(4, 144))
