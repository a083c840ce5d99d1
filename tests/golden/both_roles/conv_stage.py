"""The compute-heavy stage of both_roles.py: 6 ops, 752 parameters, 2,560 forward FLOPs a sample."""

from torch import nn


class ConvStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(60, 8)
        self.mix = nn.Linear(8, 8)
        self.conv = nn.Conv1d(8, 8, kernel_size=3, padding=1)

    def forward(self, x):
        """Take x: i64[B, 5]; give transpose_1 f32[B, 5, 8]."""
        x = self.table(x)                                             # both_roles.py:17
        x = self.mix(x)
        x = x.relu()
        x = x.transpose(1, 2)                                         # both_roles.py:18
        x = self.conv(x)
        return x.transpose(1, 2)
