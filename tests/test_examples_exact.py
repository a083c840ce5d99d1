"""Programs compiled from the examples train as one process does, on 3 and 5 ranks, dedicated and colocated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from stanza_compiler.runtime.batches import make_source
from stanza_compiler.runtime.program import Example, Program
from tests.models.two_optimizers import SparseAdamAndAdamW
from tests.one_process import (
    Named,
    State,
    adamw,
    assert_trains_alike,
    compiled,
    derive,
    held,
    one_process,
    order,
    sgd,
)

EXAMPLES = Path(__file__).parents[1] / "examples"

# 10 items are 5 + 5, 4 + 3 + 3, 3 + 3 + 2 + 2 or 2 each. Where a data set has 22 the third batch is of 2: CONV rank 2
# and those behind it have none, nor has a host of theirs alone.
BATCH = 10

SEPARATED = ("2+1", "3 colocated, 1 host", "3 colocated, 2 hosts", "3+2", "4+1", "5 colocated, 2 hosts")

SMALL = {"gpt_small": "small_gpt", "lstm_lm": "small_lstm", "dlrm": "small_dlrm"}

ORDERS = {"gpt_small": "fc-conv-fc", "lstm_lm": "fc-conv-fc", "dlrm": "fc-conv"}

# What the hosts are to hold, of every size. Some more layers of GPT's last block are theirs where that is faster.
OF_HOSTS = {
    "gpt_small": {"table.weight", "head.weight"},
    "lstm_lm": {"table.weight", "head.weight", "head.bias"},
    "dlrm": {f"tables.{number}.weight" for number in range(4)},
}

ADAMW = """
def make_optimizer(params):
    return torch.optim.AdamW(params, lr=1e-3)
"""

SPARSE_ADAM_AND_ADAMW = """
from two_optimizers import SparseAdamAndAdamW


def make_optimizer(named_parameters):
    return SparseAdamAndAdamW(named_parameters, "tables")
"""

MOMENTUM = """
def make_optimizer(params):
    return torch.optim.SGD(params, lr=0.02, momentum=0.9)
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A compiled program, and the weights before and after that one process finds."""

    out: Path
    expected: tuple[State, State]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Callable[[str, str], Case]:
    """Each compiled and trained in one process once."""

    @cache
    def make(name: str, kind: str) -> Case:
        folder = tmp_path_factory.mktemp(name)
        file, make_optimizer, items = _user_file(folder / "user", name, kind, models)
        plan = compiled(file, folder / "out")
        assert order(plan) == ORDERS[name]
        assert held(folder / "out", "fc") >= OF_HOSTS[name]
        assert not held(folder / "out", "conv") & OF_HOSTS[name]
        return Case(folder / "out", one_process(file, make_optimizer, global_batch=BATCH, items=items))

    return make


def _user_file(
    folder: Path, name: str, kind: str, models: Path
) -> tuple[Path, Callable[[Named], Any], Sequence[Any] | None]:
    """The user's file, the optimiser that it means, and the items where it has no dataset."""
    example = EXAMPLES / f"{name}.py"
    if kind == "small":
        lr = {"gpt_small": 0.05, "lstm_lm": 0.1, "dlrm": 0.02}[name]
        return derive(folder, example, models / f"{SMALL[name]}.py", lines=""), sgd(lr), None
    if kind == "small, AdamW, float64":
        lines = SPARSE_ADAM_AND_ADAMW if name == "dlrm" else ADAMW
        lines = f"{SMALL[name]}.DTYPE = torch.float64\n{lines}"
        file = derive(folder, models / "two_optimizers.py", example, models / f"{SMALL[name]}.py", lines=lines)
        return file, (lambda named: SparseAdamAndAdamW(named, "tables")) if name == "dlrm" else adamw, None
    if name == "dlrm":
        return derive(folder, example, lines=MOMENTUM), sgd(0.02), None
    tokens, vocabulary = {"gpt_small": (64, 32_000), "lstm_lm": (32, 30_000)}[name]
    return example, sgd({"gpt_small": 0.05, "lstm_lm": 0.1}[name]), _synthetic_sentences(tokens, vocabulary)


def _synthetic_sentences(tokens: int, vocabulary: int) -> list[Any]:
    """The first 50 items of a program whose file has no dataset: numbers of the example's range, by --seed 0."""
    ids = Example("int64", (tokens,), low=0, high=vocabulary - 1)
    program = Program(
        Path(),
        stages={},
        segments=(),
        build_model=dict,
        bind_inputs=dict,
        example_inputs={"ids": ids},
        example_targets=ids,
    )
    source = make_source(program, None, 0, torch.device("cpu"))
    batches = [source.load([number]) for number in range(50)]
    return [(batch.inputs["ids"][0], batch.targets[0]) for batch in batches]


def _chosen() -> list[Any]:
    """All of them; a few short ones are for every day."""
    every_day = {
        ("gpt_small", "small", "3+2"),
        ("lstm_lm", "small, AdamW, float64", "2+1"),
        ("dlrm", "small, AdamW, float64", "3 colocated, 2 hosts"),
    }
    return [
        pytest.param(*chosen, marks=() if chosen in every_day else pytest.mark.slow)
        for name in SMALL
        for kind in ("small", "small, AdamW, float64", "real size")
        for layout in SEPARATED
        for chosen in [(name, kind, layout)]
    ]


@pytest.mark.parametrize(("name", "kind", "layout"), _chosen())
def test_an_example_trains_as_in_one_process(
    case: Callable[[str, str], Case], tmp_path: Path, name: str, kind: str, layout: str
) -> None:
    program = case(name, kind)
    assert_trains_alike(program.out, layout, tmp_path, program.expected, global_batch=BATCH)
