"""The compute-heavy stage of small_cnn.py: 7 ops, 1,392 parameters, 145,152 forward FLOPs a sample."""

import torch
from torch import nn


class ConvStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=2, stride=2),
            nn.Conv2d(8, 16, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=2, stride=2),
        )

    def forward(self, x):
        """Take x: f32[B, 3, 12, 12]; give flatten f32[B, 144]."""
        x = self.features(x)                                          # small_cnn.py:22
        return torch.flatten(x, 1)                                    # small_cnn.py:23
