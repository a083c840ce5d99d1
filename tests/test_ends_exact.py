"""Parameters in front of CONV and behind it, shared or not: programs train as one process does."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stanza_compiler.plan import Request
from tests.one_process import (
    SEPARATE,
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

# As 5 + 5, or 4 + 3 + 3; the third batch of the 22 is of 2.
BATCH = 10


def hosting(*ops: str) -> Request:
    """A request, as --plan makes it, for FC to hold these ops."""
    return Request(strategy="separate", fc_ops=ops, conv_workers=3, fc_workers=1, placement="colocated")


# By name: the model's file, what is asked, the order, what the hosts hold.
PLANS: dict[str, tuple[str, Request, str, set[str]]] = {
    "a tied table and head": (
        "tied_table_and_head",
        SEPARATE,
        "fc-conv-fc",
        {"emb.weight", "lm.weight"},
    ),
    "a shared matrix, left to CONV": ("shared_matrix", SEPARATE, "conv-fc", {"wide"}),
    "a shared matrix, in front and behind": (
        "shared_matrix",
        hosting("matmul", "relu", "t", "mm_1", "mul", "getitem", "expand", "addmm"),
        "fc-conv-fc",
        {"mm", "wide", "scale"},
    ),
    "a table and a head": (
        "table_and_head",
        hosting("emb", "lm"),
        "fc-conv-fc",
        {"emb.weight", "lm.weight", "lm.bias"},
    ),
}

RATES = {"tied_table_and_head": 0.05, "shared_matrix": 0.5, "table_and_head": 0.5}

FLOAT64 = """
def build_model():
    return tied_table_and_head.build_model().double()


def make_optimizer(params):
    return torch.optim.AdamW(params, lr=1e-3)
"""

Made = tuple[Path, tuple[State, State]]


@pytest.fixture(scope="module")
def program(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Each plan's program, and what one process finds, made once."""

    @cache
    def make(plan: str) -> Made:
        name, request, segments, of_hosts = PLANS[plan]
        out = tmp_path_factory.mktemp(name) / "out"
        return out, _made(models / f"{name}.py", out, request, segments, of_hosts, sgd(RATES[name]))

    return make


def _made(
    file: Path, out: Path, request: Request, segments: str, of_hosts: set[str], make_optimizer: Callable[[Named], Any]
) -> tuple[State, State]:
    assert order(compiled(file, out, request)) == segments
    assert held(out, "fc") == of_hosts
    before, after = one_process(file, make_optimizer, global_batch=BATCH)
    assert held(out, "conv") == set(after) - of_hosts
    return before, after


EVERY_DAY = {("a tied table and head", "3+2"), ("a shared matrix, in front and behind", "2+1")}


@pytest.mark.parametrize(
    ("plan", "layout"),
    [
        pytest.param(plan, layout, marks=() if (plan, layout) in EVERY_DAY else pytest.mark.slow)
        for plan in PLANS
        for layout in ("2+1", "3 colocated, 1 host", "3 colocated, 2 hosts", "3+2")
    ],
)
def test_parameters_at_both_ends_train_as_in_one_process(
    program: Callable[[str], Made], tmp_path: Path, plan: str, layout: str
) -> None:
    out, expected = program(plan)
    assert_trains_alike(out, layout, tmp_path, expected, global_batch=BATCH)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["3 colocated, 2 hosts", "3+2"])
def test_a_tied_matrix_gets_from_adamw_what_it_gets_in_one_process(models: Path, tmp_path: Path, layout: str) -> None:
    _, request, segments, of_hosts = PLANS["a tied table and head"]
    file = derive(tmp_path / "user", models / "tied_table_and_head.py", lines=FLOAT64)
    expected = _made(file, tmp_path / "out", request, segments, of_hosts, adamw)
    assert_trains_alike(tmp_path / "out", layout, tmp_path, expected, global_batch=BATCH)
