"""An FC stage that also takes an input of the model's own."""

import torch
from torch import Tensor, nn


class FcStage(nn.Module):
    """h, kind, gate, sequence, ids i64[B], pull -> {scores f32[B, 5], pull f32[]}"""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(8, 8, sparse=True)
        self.names = nn.Embedding(20, 8)
        self.head = nn.Linear(12, 5)

    def forward(
        self, h: Tensor, kind: Tensor, gate: Tensor, sequence: Tensor, ids: Tensor, pull: Tensor | float = 0.0
    ) -> dict[str, object]:
        mixed = h * gate.sigmoid() + self.kinds(kind) + self.names(ids)
        long = sequence.cumsum(0)[-1]
        return {"scores": self.head(torch.cat([mixed, long], 1)), "pull": pull}
