"""Steps cut into micro-batches against one-process loops written by hand."""

import time
from pathlib import Path

import pytest

from tests.launch import edit, launch, run
from tests.test_runtime_exactness import assert_equal, awkward_loop, awkward_program, small_loop, small_program
from tests.test_shared_training import (
    MODEL,
    PLANS,
    adamw,
    assert_close,
    compiled,
    initial_weights,
    loss_of,
    one_process,
    trained,
)


def cut(folder: Path, micro_batches: int) -> Path:
    """The program, its steps cut into so many micro-batches."""
    edit(folder / "plan.json", '"batch_size"', f'"micro_batches": {micro_batches}, "batch_size"')
    return folder


@pytest.mark.parametrize(
    ("world_size", "flags", "global_batch", "micro_batches"),
    [
        (3, ("--conv-workers", 2, "--global-batch-size", 32), 32, 2),
        # 75 = 37 + 37 + 1: of the last batch CONV ranks 1 and 2 have nothing, and host 1 (rank 2) neither
        (3, ("--placement", "colocated", "--fc-workers", 2, "--global-batch-size", 37), 37, 3),
        pytest.param(3, ("--conv-workers", 2, "--global-batch-size", 37), 37, 3, marks=pytest.mark.slow),
        pytest.param(
            3,
            ("--placement", "colocated", "--fc-workers", 1, "--global-batch-size", 37),
            37,
            2,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            5, ("--placement", "dedicated", "--fc-workers", 2, "--global-batch-size", 24), 24, 3, marks=pytest.mark.slow
        ),
    ],
    ids=["2+1", "3 colocated, 2 hosts", "2+1, 3 pieces", "3 colocated, 1 host", "3+2"],
)
def test_a_step_cut_into_micro_batches_equals_one_process(
    tmp_path: Path, world_size: int, flags: tuple[object, ...], global_batch: int, micro_batches: int
) -> None:
    folder = cut(small_program(tmp_path / "out"), micro_batches)
    run(folder, world_size, "--no-shuffle", "--steps", 8, *flags, "--export", tmp_path / "a.pt")
    assert_equal(tmp_path / "a.pt", small_loop(global_batch, 8)[0])


@pytest.mark.parametrize(
    ("world_size", "flags", "micro_batches"),
    [
        (3, ("--placement", "colocated", "--fc-workers", 1), 2),
        pytest.param(5, (), 3, marks=pytest.mark.slow),
        pytest.param(3, ("--placement", "colocated", "--fc-workers", 2), 3, marks=pytest.mark.slow),
    ],
)
def test_a_loss_that_counts_by_targets_is_divided_by_the_count_of_all_micro_batches(
    tmp_path: Path, world_size: int, flags: tuple[object, ...], micro_batches: int
) -> None:
    folder = cut(awkward_program(tmp_path / "out"), micro_batches)
    length = ("--no-shuffle", "--steps", 7, "--global-batch-size", 10)
    run(folder, world_size, *length, *flags, "--export", tmp_path / "a.pt")
    assert_equal(tmp_path / "a.pt", awkward_loop(10, 7, pulls=True))


@pytest.mark.slow
def test_a_rank_that_raises_ends_the_job_at_once_though_its_host_is_receiving(tmp_path: Path) -> None:
    folder = cut(small_program(tmp_path / "out"), 2)
    flags = ("--placement", "colocated", "--fc-workers", 1, "--global-batch-size", 32)
    start = time.monotonic()
    # step 2 takes items 32 to 63, the first 11 of them on rank 0, which hosts FC and waits for the others meanwhile
    results = launch(folder, 3, "--no-shuffle", "--steps", 8, "--timeout", 1000, *flags, FAIL_ITEM="33")
    assert time.monotonic() - start < 120
    assert [result.status for result in results] == [1, 1, 1]
    error = "error: rank 0 (conv 0 and fc host 0), step 2: OSError: item 33 can't be read"
    assert results[0].err.strip().splitlines()[-1] == error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "flags"),
    [(3, ("--conv-workers", 2)), (3, ("--placement", "colocated", "--fc-workers", 2))],
    ids=["2+1", "3 colocated, 2 hosts"],
)
def test_parameters_of_both_roles_get_the_gradients_of_all_micro_batches(
    tmp_path: Path, world_size: int, flags: tuple[object, ...]
) -> None:
    folder = compiled(tmp_path, MODEL.replace("return Net()", "return Net().double()"), PLANS["conv-fc"][0])
    edit(folder / "plan.json", '"micro_batches": 1', '"micro_batches": 3')
    expected = one_process(initial_weights(folder), loss_of, adamw)
    assert_close(trained(folder, tmp_path, world_size, *flags), expected, 1e-9, 0.0)
