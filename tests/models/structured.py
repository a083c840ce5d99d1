"""A nested dict and keywords in, a named tuple with an early output, None and a dict out."""

from typing import NamedTuple

import torch
from torch import nn


class Result(NamedTuple):
    main: torch.Tensor
    early: torch.Tensor
    nothing: None
    more: dict[str, torch.Tensor]


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, padding=1)
        self.early = nn.Linear(6, 5)
        self.words = nn.Embedding(50, 24)
        self.fc = nn.Linear(6 * 64 + 24, 300)
        self.out = nn.Linear(300, 5)

    def forward(self, batch, *, gate=None, mask=None, power: int = 2, **extra):
        image = torch.relu(self.conv(batch["image"]["pixels"]))
        if gate is not None:
            image = image * gate
        if mask is not None:
            image = image.masked_fill(mask, 0.0)
        text = self.words(batch["tokens"]).mean(1)
        hidden = torch.relu(self.fc(torch.cat([image.flatten(1), text], 1))) ** power
        return Result(self.out(hidden) + extra["offset"], self.early(image.mean((2, 3))), None, {"text": text})


def build_model():
    return Structured()


def example_inputs():
    return ({"image": {"pixels": torch.randn(4, 1, 8, 8)}, "tokens": torch.randint(0, 50, (4, 7))},)


def example_kwargs():
    return {"gate": torch.rand(4, 6, 8, 8), "offset": torch.randn(4, 5)}
