"""The FC stage of a small language model: the table in front is also the head behind."""

import torch.nn.functional as F
from torch import Tensor, nn


class FcStage(nn.Module):
    """Two segments, one before and one after the CONV stage."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 6)
        self.gain = nn.Parameter(self.table.weight[0].detach().clone())
        self.shift = nn.Embedding(50, 6, sparse=True)
        self.last = nn.Linear(6, 6)
        self.head = nn.Linear(6, 50)
        self.head.weight = self.table.weight

    def segment_0(self, ids: Tensor) -> tuple[Tensor, ...]:
        """ids i64[B, T] -> emb f32[B, T, 6], gain f32[6]"""
        return self.table(ids), self.gain.tanh()

    def segment_2(self, emb: Tensor, gain: Tensor, h: Tensor, ids: Tensor) -> Tensor:
        """emb f32[B, T, 6], gain f32[6], h f32[B, T, 6], ids i64[B, T] -> scores f32[B, T, 50]"""
        return self.head(self.last(h + emb * gain) + self.shift(ids)) + F.relu(h).sum(-1, keepdim=True)
