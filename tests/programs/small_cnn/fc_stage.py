"""The FC stage of a small CNN."""

from torch import Tensor, nn


class FcStage(nn.Module):
    """flatten f32[B, 144] -> scores f32[B, 10]"""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(144, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, flatten: Tensor) -> Tensor:
        return self.fc2(self.fc1(flatten).relu())
