"""One export is enough for a model that never asks for its mode."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stanza_compiler.mode_reads import ModeReads, has_own_modes
from stanza_compiler.passes.trace import trace
from tests.source_of import source_of


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.drop = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(self.fc(x))) + x


class Asking(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.fc(x), 0.5, getattr(self, "training", False))


class Merging(Plain):
    scale = 1.0

    def train(self, mode: bool = True) -> "Merging":
        self.scale = 1.0 if mode else 3.0
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) * self.scale


class Own(nn.BatchNorm1d):
    """No layer of torch's: its calls stay single operations."""


class AskingInside(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Own(6)


@pytest.mark.parametrize(("kind", "exports"), [(Plain, 1), (Asking, 2), (Merging, 3), (AskingInside, 3)])
def test_a_model_is_exported_in_eval_mode_too_where_that_may_differ_and_again_where_it_does(
    kind: type[nn.Module], exports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    export, seen = torch.export.export, []
    monkeypatch.setattr(torch.export, "export", lambda *args, **kwargs: seen.append(1) or export(*args, **kwargs))
    model, x = kind(), torch.randn(5, 6)
    traced = trace(source_of(model, torch.randn(4, 6)), front_end="export", verify=False)
    assert len(seen) == exports
    expected = copy.deepcopy(model).eval()(x)
    traced.root.eval()
    torch.testing.assert_close(traced.run(x), expected)


def test_reading_the_flag_is_noted_and_writing_it_is_not() -> None:
    root = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    with ModeReads() as reads:
        root.train(False)
        root(torch.ones(1, 2))
    assert reads.readers == {id(root[1])}
    assert [module.training for module in root.modules()] == [False, False, False]
    assert not hasattr(nn.Module, "training")


def test_a_flag_of_their_own_making_is_told() -> None:
    class Frozen(nn.Module):
        training = property(lambda self: False, lambda self, value: None)  # type: ignore[assignment]

    assert has_own_modes(Frozen())
    assert has_own_modes(Merging())
    assert not has_own_modes(Plain())
