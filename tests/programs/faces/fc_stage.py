"""The FC stage of a classifier of many faces."""

import torch.nn.functional as F
from torch import Tensor, nn


class FcStage(nn.Module):
    """tanh f64[B, 16] -> scores f64[B, 103]"""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(3, 2).double()
        self.layers = nn.Sequential(nn.Linear(16, 25), nn.ReLU(inplace=True), nn.Dropout(0.25)).double()
        self.middle = nn.Linear(25, 20, bias=False).double()
        self.faces = nn.Linear(20, 103).double()

    def forward(self, tanh: Tensor) -> Tensor:
        x = self.layers(F.dropout(tanh, 0.1, self.training))
        return self.faces(F.gelu(self.middle(x)))
