"""The CONV stage of a small language model: causal, so that padding on the right changes nothing."""

import torch.nn.functional as F
from torch import Tensor, nn


class ConvStage(nn.Module):
    """emb f32[B, T, 6], gain f32[6] -> h f32[B, T, 6]"""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(6, 8, 3)
        self.down = nn.Linear(8, 6)

    def forward(self, emb: Tensor, gain: Tensor) -> Tensor:
        mixed = self.mix(F.pad((emb * gain).transpose(1, 2), (2, 0))).transpose(1, 2)
        return self.down(mixed.tanh())
