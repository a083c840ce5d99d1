"""The compute-heavy stage of shared_state.py: 10 ops, 744 parameters, 19,872 forward FLOPs a sample."""

import torch
from torch import nn


class ConvStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(6))
        self.register_buffer("table", torch.empty(24))
        self.register_buffer("mask", torch.empty(24), persistent=False)
        self.frozen = nn.Conv1d(1, 6, kernel_size=3, padding=1).requires_grad_(False)
        self.conv = nn.Conv1d(6, 6, kernel_size=3, padding=1)
        self.shared = nn.Linear(24, 24)
        self.act = nn.ReLU()
        self.steps = nn.ModuleDict({})
        self.steps["0"] = self.act

    def forward(self, x):
        """Take x: f32[B, 1, 24]; give flatten f32[B, 144]."""
        x = x * self.table                                            # shared_state.py:27
        x = self.frozen(x)
        x = self.conv(x)
        x = self.act(x)
        getitem = self.scale[:, None]                                 # shared_state.py:28
        x = x * getitem
        x = x * self.mask
        x = self.shared(x)                                            # shared_state.py:29
        x = self.shared(x)
        return x.flatten(1)
