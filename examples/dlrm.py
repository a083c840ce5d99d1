"""A recommender (DLRM, Naumov et al. 2019): large tables in front, layers and interactions of all pairs behind them.

Its tables hold 18 MB; with `DLRM_GB=2` in the environment 2 GB.
"""

import os
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH = 32
DENSE = 13
WIDTH = 32
LOOKUPS = 8
SHARES = (50, 30, 15, 5)  # percent of all rows
ROWS = int(float(os.environ.get("DLRM_GB", "0.018")) * 1e9) // (4 * WIDTH)


class Dlrm(nn.Module):
    """Tables with sparse gradients, one multi-hot feature each; every pair of vectors gives a product."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(ROWS * share // 100, WIDTH, mode="sum", sparse=True) for share in SHARES
        )
        self.bottom = nn.Sequential(nn.Linear(DENSE, 64), nn.ReLU(), nn.Linear(64, WIDTH), nn.ReLU())
        pairs = (len(SHARES) + 1) ** 2
        self.top = nn.Sequential(nn.Linear(WIDTH + pairs, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """dense [B, 13] and sparse [B, tables, 8], row numbers of each table, give one logit a sample."""
        vectors = [self.bottom(dense), *(table(sparse[:, k]) for k, table in enumerate(self.tables))]
        stacked = torch.stack(vectors, 1)
        pairs = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([vectors[0], pairs], 1)).squeeze(1)


def build_model() -> nn.Module:
    return Dlrm()


def example_inputs() -> tuple[Tensor, Tensor]:
    dense, sparse, _ = zip(*(click(number) for number in range(BATCH)), strict=True)
    return torch.stack(dense), torch.stack(sparse)


def example_targets() -> Tensor:
    return torch.stack([click(number)[2] for number in range(BATCH)])


def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs, targets)


def make_optimizer(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.05)


def click(number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Item `number`, made up: dense features, row numbers of every table, and whether it was clicked."""
    generator = torch.Generator().manual_seed(number)
    dense = torch.randn(DENSE, generator=generator)
    rows = [torch.randint(ROWS * share // 100, (LOOKUPS,), generator=generator) for share in SHARES]
    return dense, torch.stack(rows), (dense.sum() + torch.randn((), generator=generator) > 0).float()


class Clicks(torch.utils.data.Dataset[tuple[tuple[Tensor, Tensor], Tensor]]):
    """10,000 made-up items."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, number: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        dense, rows, clicked = click(number)
        return (dense, rows), clicked


def make_dataset() -> Clicks:
    return Clicks()
