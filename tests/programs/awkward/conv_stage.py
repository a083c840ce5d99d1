"""A CONV stage whose boundary holds every kind of tensor."""

import torch
from torch import Tensor, nn


class ConvStage(nn.Module):
    """x f32[B, 6] -> h f32[B, 8], kind i64[B], gate f32[8], sequence f32[3, B, 4], pull f32[]"""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(6, 8)
        self.steps = nn.Linear(6, 12)
        self.gate = nn.Parameter(torch.zeros(8))
        self.drag = nn.Parameter(torch.zeros(6))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = self.lift(x).tanh()
        kind = h.argmax(1)
        sequence = self.steps(x).view(-1, 3, 4).transpose(0, 1)
        pull = (x @ self.drag).square().sum()
        return h, kind, self.gate, sequence, pull
