"""The compute-heavy stage of structured.py: 1 ops, 60 parameters, 6,912 forward FLOPs a sample."""

from torch import nn


class ConvStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, kernel_size=3, padding=1)

    def forward(self, x):
        """Take x: f32[B, 1, 8, 8]; give conv f32[B, 6, 8, 8]."""
        return self.conv(x)                                           # structured.py:26
