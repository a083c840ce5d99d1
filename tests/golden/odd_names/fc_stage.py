"""The parameter-heavy stage of odd_names.py: 7 ops, 103,675 parameters, 206,900 forward FLOPs a sample."""

import torch
from torch import nn


class FcStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seq = nn.Module()
        self.seq.add_module("0", nn.Linear(512, 200))
        self.seq.items = nn.ReLU()
        self.seq.add_module("None", nn.Linear(200, 5))
        self.add_module("import os", nn.Linear(5, 5))
        self.self = nn.Linear(5, 5)
        self.weights = nn.Module()
        self.weights.register_parameter("a-b", nn.Parameter(torch.empty(5)))
        self.weights.register_parameter("lambda", nn.Parameter(torch.empty(5)))

    def forward(self, x):
        """Take x: f32[B, 512]; give the model's output."""
        x = self.seq.get_submodule("0")(x)                            # odd_names.py:27
        x = self.seq.items(x)
        x = self.seq.get_submodule("None")(x)
        x = self.get_submodule("import os")(x)                        # odd_names.py:28
        x = self.self(x)
        x = x * self.weights.get_parameter("lambda")                  # odd_names.py:29
        return x + self.weights.get_parameter("a-b")
