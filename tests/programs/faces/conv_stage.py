"""The CONV stage of a classifier of many faces."""

from torch import Tensor, nn


class ConvStage(nn.Module):
    """x f64[B, 6] -> tanh f64[B, 16]"""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(6, 16).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.lift(x).tanh()
