"""The parameter-heavy stage of small_cnn.py: 3 ops, 31,010 parameters, 61,600 forward FLOPs a sample."""

from torch import nn


class FcStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Sequential(
            nn.Linear(144, 200),
            nn.ReLU(),
            nn.Linear(200, 10),
        )

    def forward(self, x):
        """Take x: f32[B, 144]; give the model's output."""
        return self.classifier(x)                                     # small_cnn.py:23
