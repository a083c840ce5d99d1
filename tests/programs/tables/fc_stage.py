"""The FC stage of a small click model: two tables, one of them with sparse gradients."""

from torch import Tensor, nn


class FcStage(nn.Module):
    """words i64[B, 4] -> bag f32[B, 5], first f32[B, 4]"""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(40, 5, mode="sum", sparse=True)
        self.firsts = nn.Embedding(40, 4)

    def forward(self, words: Tensor) -> tuple[Tensor, ...]:
        return self.bags(words), self.firsts(words[:, 0])
