"""Finding the line where a traced graph leaves the model."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from stanza_compiler.eager_lines import first_loss
from tests.source_of import source_of


class Calling(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.fc = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.fc(x))


def place(text: str) -> str:
    """This file's line that holds the comment `text`."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return f"test_eager_lines.py:{1 + next(index for index, line in enumerate(lines) if line.endswith(f'# {text}'))}"


FORWARD = f"test_eager_lines.py:{Calling.forward.__code__.co_firstlineno + 1}"
X = torch.ones(2, 2)


def without_gradients(h: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return h * 2  # no gradients here


def in_half_precision(h: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return h @ h  # half precision here


def plainly(h: torch.Tensor) -> torch.Tensor:
    return h.cos()  # plain


def test_a_graph_with_a_node_for_every_line_has_lost_nothing() -> None:
    assert first_loss(source_of(Calling(plainly), X), "torch.fx", {FORWARD, place("plain")}) is None


def test_a_line_that_runs_without_gradients_is_found() -> None:
    loss = first_loss(source_of(Calling(without_gradients), X), "torch.fx", {FORWARD, place("no gradients here")})
    assert loss is not None
    assert loss.line == place("no gradients here")
    assert "torch.no_grad" in loss.cause


def test_a_line_that_runs_under_autocast_is_found() -> None:
    loss = first_loss(source_of(Calling(in_half_precision), X), "torch.fx", {FORWARD, place("half precision here")})
    assert loss is not None
    assert loss.line == place("half precision here")
    assert "autocast" in loss.cause


def test_a_line_that_only_one_of_the_two_runs_is_found() -> None:
    lost = first_loss(source_of(Calling(plainly), X), "torch.fx", {FORWARD})
    assert lost is not None
    assert lost.line == place("plain")
    invented = first_loss(source_of(Calling(plainly), X), "torch.fx", {FORWARD, place("plain"), "model.py:3"})
    assert invented is not None
    assert invented.line == "model.py:3"


def test_the_model_and_the_random_numbers_are_as_before() -> None:
    model = Calling(torch.nn.functional.dropout).eval()
    state = torch.random.get_rng_state()
    first_loss(source_of(model, X), "torch.fx", set())
    assert not model.training
    assert torch.equal(torch.random.get_rng_state(), state)
