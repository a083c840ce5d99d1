"""A small GPT: one matrix is the table of tokens in front and the head behind, attention and MLPs are between them."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH = 8
TOKENS = 64
VOCABULARY = 32_000
WIDTH = 256
HEADS = 4
LAYERS = 4


class Block(nn.Module):
    """Pre-norm attention and MLP (Radford et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        batch, tokens, _ = h.shape
        q, k, v = self.qkv(self.norm1(h)).view(batch, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(attended.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return h + self.down(F.gelu(self.up(self.norm2(h))))


class Gpt(nn.Module):
    """8.2 million of its 11.4 million parameters are the one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.table.weight
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.table(ids) + self.places(torch.arange(ids.size(1), device=ids.device))
        return self.head(self.norm(self.blocks(h)))


def build_model() -> nn.Module:
    return Gpt()


def example_inputs() -> tuple[Tensor]:
    """Token numbers; synthetic ones are drawn from the range of these."""
    return (torch.linspace(0, VOCABULARY - 1, BATCH * TOKENS).long().reshape(BATCH, TOKENS),)


def example_targets() -> Tensor:
    return example_inputs()[0].roll(-1, 1)


def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def make_optimizer(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)
