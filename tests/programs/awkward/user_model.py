"""A loss over labelled items only, as (sum, count); every third item has no label."""

import torch
import torch.nn.functional as F
from torch import Tensor


def make_dataset() -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(22, 6, generator=generator)
    ids = torch.randint(20, (22,), generator=generator)
    labels = torch.randint(5, (22,), generator=generator)
    labels[::3] = -1
    return [({"x": x[k], "ids": ids[k]}, {"label": labels[k], "bonus": x[k, :2]}) for k in range(22)]


def loss_fn(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    labels = targets["label"]
    total = F.cross_entropy(outputs["scores"], labels, ignore_index=-1, reduction="sum")
    extra = (outputs["scores"][:, :2] * targets["bonus"]).sum() + 0.1 * outputs["pull"]
    return total + extra, (labels != -1).sum()


def make_optimizer(named_parameters: list[tuple[str, Tensor]]) -> torch.optim.Optimizer:
    slow = [parameter for name, parameter in named_parameters if name.endswith("bias")]
    fast = [parameter for name, parameter in named_parameters if not name.endswith("bias")]
    return torch.optim.SGD([{"params": fast}, {"params": slow, "lr": 0.02}], lr=0.1)
