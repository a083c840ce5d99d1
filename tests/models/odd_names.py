"""Names that are keywords, quotes, methods, digits or not ASCII, and values that look like code."""

from collections import OrderedDict

import torch
from torch import nn


class OddNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = [
            ("class", nn.Conv2d(3, 8, 3, padding=1)),
            ('q"uote', nn.ReLU()),
            ("back\\slash {} '''", nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")),
            ("\u00e9t\u00e9", nn.Flatten()),
            ("0", nn.Linear(512, 200)),
            ("items", nn.ReLU()),
            ("None", nn.Linear(200, 5)),
        ]
        self.seq = nn.Sequential(OrderedDict(layers))
        self.add_module("import os", nn.Linear(5, 5))
        self.self = nn.Linear(5, 5)
        self.weights = nn.ParameterDict({"lambda": nn.Parameter(torch.ones(5)), "a-b": nn.Parameter(torch.zeros(5))})

    def forward(self, torch):
        nn = self.seq(torch)
        nn = self.self(self._modules["import os"](nn))
        return nn * self.weights["lambda"] + self.weights["a-b"]


def build_model():
    return OddNames()


def example_inputs():
    return (torch.randn(4, 3, 8, 8),)
