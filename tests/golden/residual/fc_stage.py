"""The parameter-heavy stage of residual.py: 3 ops, 40,807 parameters, 81,000 forward FLOPs a sample."""

from torch import nn


class FcStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.ModuleDict({
            "2": nn.Linear(128, 300),
            "3": nn.Tanh(),
            "4": nn.Linear(300, 7),
        })

    def forward(self, x):
        """Take x: f32[B, 128]; give the model's output."""
        x = self.head["2"](x)                                         # residual.py:34
        x = self.head["3"](x)
        return self.head["4"](x)
