"""The CONV stage of a small click model: what stands behind the tables, the loss included."""

import torch
from torch import Tensor, nn


class ConvStage(nn.Module):
    """bag f32[B, 5], first f32[B, 4], x f32[B, 3] -> scores f32[B, 3]"""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(12, 16)
        self.narrow = nn.Linear(16, 3)

    def forward(self, bag: Tensor, first: Tensor, x: Tensor) -> Tensor:
        return self.narrow(self.wide(torch.cat([bag, first, x], 1)).relu())
