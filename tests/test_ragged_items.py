"""Items of different size, put together by the user's collate_fn: exact on every layout, and how a run ends without."""

from pathlib import Path

import pytest
import torch
from torch import nn

from stanza_compiler.plan import Request
from tests.launch import edit, launch
from tests.models.two_optimizers import SparseAdamAndAdamW
from tests.one_process import (
    LAYOUTS,
    Named,
    State,
    assert_trains_alike,
    compiled,
    derive,
    held,
    one_process,
    order,
    sgd,
)

# As 5 + 5, or 4 + 3 + 3; the third batch of the 22 is of 2, and the last item has an empty bag.
BATCH = 10

TABLES = {"user.weight", "item.weight"}
# By itself the planner leaves the smaller one to CONV: its few rows cost less than its ids and bags.
IN_FRONT = Request(strategy="separate", placement="dedicated", conv_workers=2, fc_workers=1, fc_ops=("user", "item"))

FLOAT64 = """
from two_optimizers import SparseAdamAndAdamW

ragged_bags.DTYPE = torch.float64


def make_optimizer(named_parameters):
    return SparseAdamAndAdamW(named_parameters, "user", "item")
"""

# Each rank's batch of 5 has 5 ids, as the example has as many as bags: they look like a batch.
AS_MANY_IDS_AS_BAGS = """
ragged_bags.Items.bags = (2, 0, 1, 1, 1)


def example_inputs():
    return torch.randn(4, 13), torch.randint(2000, (4,)), torch.arange(4), torch.rand(4), torch.randint(1500, (4, 3))
"""


def sparse_adam_and_adamw(named: Named) -> SparseAdamAndAdamW:
    return SparseAdamAndAdamW(named, "user", "item")


@pytest.fixture(scope="module")
def bags(models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[State, State]]:
    """The program, and what one process finds."""
    out, file = tmp_path_factory.mktemp("bags") / "out", models / "ragged_bags.py"
    plan = compiled(file, out, IN_FRONT)
    assert order(plan) == "fc-conv"
    assert held(out, "fc") == TABLES
    kinds = {each.name: each.kind for each in plan.boundary if each.from_segment == 1}
    assert kinds == {"users": "per-rank", "user_off": "batched", "user_w": "per-rank", "items": "batched"}
    return out, one_process(file, sgd(0.05), global_batch=BATCH)


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param("2+1", marks=pytest.mark.slow),
        pytest.param("3 colocated, 1 host", marks=pytest.mark.slow),
        "3 colocated, 2 hosts",
        pytest.param("3+2", marks=pytest.mark.slow),
    ],
)
def test_ragged_bags_in_front_train_as_in_one_process(
    bags: tuple[Path, tuple[State, State]], tmp_path: Path, layout: str
) -> None:
    assert_trains_alike(bags[0], layout, tmp_path, bags[1], global_batch=BATCH)


@pytest.mark.slow
def test_bags_train_as_in_one_process_even_if_the_example_has_as_many_ids_as_bags(models: Path, tmp_path: Path) -> None:
    file = derive(tmp_path / "user", models / "ragged_bags.py", lines=AS_MANY_IDS_AS_BAGS)
    assert order(compiled(file, tmp_path / "out", IN_FRONT)) == "fc-conv"
    expected = one_process(file, sgd(0.05), global_batch=BATCH)
    assert_trains_alike(tmp_path / "out", "2+1", tmp_path, expected, global_batch=BATCH)


@pytest.mark.parametrize(
    ("strategy", "layout"),
    [
        ("data-parallel", "3 data-parallel"),
        pytest.param("separate", "3+2", marks=pytest.mark.slow),
    ],
)
def test_an_optimiser_of_touched_rows_sees_those_of_the_items_alone(
    models: Path, tmp_path: Path, strategy: str, layout: str
) -> None:
    # in the third batch the last of three ranks has no items: what it runs on instead touches rows too
    originals = (models / "two_optimizers.py", models / "ragged_bags.py")
    file = derive(tmp_path / "user", *originals, lines=FLOAT64)
    compiled(file, tmp_path / "out", Request(strategy=strategy))
    expected = one_process(file, sparse_adam_and_adamw, global_batch=BATCH)
    assert_trains_alike(tmp_path / "out", layout, tmp_path, expected, global_batch=BATCH)


def test_items_that_make_no_batch_as_they_are_end_the_job_with_what_to_define(models: Path, tmp_path: Path) -> None:
    text = (models / "ragged_bags.py").read_text()
    file = tmp_path / "model.py"
    file.write_text(text[: text.index("def collate_fn")])
    compiled(file, tmp_path / "out")
    results = launch(tmp_path / "out", 3, *LAYOUTS["2+1"][1], "--no-shuffle", "--steps", 2)
    assert [result.status for result in results] == [1, 1, 1]
    lines = [result.err.strip().splitlines()[-1] for result in results]
    assert lines[0] == (
        "error: rank 0 (conv 0), step 0: ValueError: 2 items of the dataset don't make a batch as they are (stack "
        "expects each tensor to be equal size, but got [2] at entry 0 and [0] at entry 1); define collate_fn(items)"
    )
    assert lines[1].startswith("error: rank 1 (conv 1), step 0: ValueError: 2 items of the dataset don't make a batch")
    assert lines[2].startswith("error: rank 2 (fc host 0), step 0: EdgeError: agreement of all ranks: ")


def test_an_id_that_a_hosts_table_lacks_ends_the_job_with_the_hosts_own_error(models: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text((models / "ragged_bags.py").read_text())
    # item 14 is in step 2
    edit(
        file,
        "        return (dense.to(DTYPE)",
        "        items[1] += 1500 * (number == 14)\n        return (dense.to(DTYPE)",
    )
    compiled(file, tmp_path / "out")
    results = launch(
        tmp_path / "out", 3, *LAYOUTS["2+1"][1], "--no-shuffle", "--steps", 5, "--global-batch-size", BATCH
    )
    assert [result.status for result in results] == [1, 1, 1]
    lines = [result.err.strip().splitlines()[-1] for result in results]
    with pytest.raises((RuntimeError, IndexError)) as refused:
        nn.EmbeddingBag(1500, 16)(torch.tensor([[0, 1500]]))
    assert lines[2].startswith(f"error: rank 2 (fc host 0), step 2: {type(refused.value).__name__}: ")
    # torch says it in other words when it looks up with several threads.
    assert "not in the valid range [0, 1500)" in lines[2] or "Expected i < index_size to be true" in lines[2]
    assert "fc_stage.py" in results[2].err
    assert "EdgeError: header from rank 2: " in lines[0]
    assert "EdgeError: header from rank 2: " in lines[1]
