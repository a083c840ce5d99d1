"""The parameter-heavy stage of both_roles.py: 3 ops, 612 parameters, 5,440 forward FLOPs a sample."""

from torch import nn


class FcStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 60)

    def forward(self, x):
        """Take x: f32[B, 5, 8]; give the model's output."""
        x = x.tanh()                                                  # both_roles.py:19
        x = self.mix(x)
        return self.head(x)
