"""How a run ends when a rank fails, hangs or disagrees."""

import time
from pathlib import Path

import pytest

from stanza_compiler.runtime import Program, main
from tests.launch import launch, launch_processes
from tests.test_runtime_exactness import small_program


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return small_program(tmp_path / "out")


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


def test_a_rank_that_raises_ends_the_job_at_once_with_its_own_error(folder: Path) -> None:
    start = time.monotonic()
    results = launch_processes(folder, 3, "--no-shuffle", "--steps", 8, "--timeout", 1000, FAIL_ITEM="50")
    assert time.monotonic() - start < 120
    assert [result.status for result in results] == [1, 1, 1]
    # step 2 takes items 32 to 63, the second half of them on rank 1
    assert last_line(results[1].err) == "error: rank 1 (conv 1), step 2: OSError: item 50 can't be read"
    assert "__getitem__" in results[1].err
    assert last_line(results[2].err).startswith("error: rank 2 (fc host 0), step 2: EdgeError: header from rank ")


def test_a_rank_that_hangs_ends_the_job_at_the_timeout(folder: Path) -> None:
    results = launch(folder, 3, "--no-shuffle", "--steps", 8, "--timeout", 8, HANG_ITEM="50")
    assert [result.status for result in results] == [1, 1, 1]
    assert last_line(results[2].err).startswith("error: rank 2 (fc host 0), step 2: EdgeError: header from rank ")


def test_ranks_that_disagree_on_a_tensor_say_so_before_training(folder: Path) -> None:
    results = launch(folder, 3, "--steps", 2, WIDE_RANK="1")
    assert [result.status for result in results] == [1, 1, 1]
    for result in results:
        assert last_line(result.err).endswith(
            "step 0: DisagreementError: rank 1 would send 'target 0' int32 of 1 axes, without gradient, "
            "rank 0 'target 0' int64 of 1 axes, without gradient"
        )


@pytest.mark.parametrize(("rank", "expected"), [("0", True), ("1", False)])
def test_flags_that_do_not_add_up_end_with_one_line_from_rank_0_and_status_2(
    folder: Path, rank: str, expected: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", rank)
    program = Program(folder, stages={}, segments=(), build_model=dict, bind_inputs=dict)
    with pytest.raises(SystemExit) as exit_info:
        main(program, ["--conv-workers", "3", "--fc-workers", "1"])
    assert exit_info.value.code == 2
    what = "worker flags: 3 conv + 1 fc, dedicated is no layout of WORLD_SIZE 3"
    assert capsys.readouterr().err == (f"error: {what}; pass counts that use every rank\n" if expected else "")
