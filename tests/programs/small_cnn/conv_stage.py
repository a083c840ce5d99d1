"""The CONV stage of a small CNN."""

from torch import Tensor, nn


class ConvStage(nn.Module):
    """x f32[B, 3, 12, 12] -> flatten f32[B, 144]"""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.pool(self.conv1(x).relu())
        return self.pool(self.conv2(h).relu()).flatten(1)
