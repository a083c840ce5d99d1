"""How a run ends when a rank fails, hangs or disagrees."""

import time
from pathlib import Path

import pytest

from stanza_compiler.runtime import Program, Segment, main
from tests.launch import edit, launch, launch_processes
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


def test_what_is_no_tensor_in_targets_may_not_change(tmp_path: Path) -> None:
    folder = small_program(tmp_path / "out")
    with (folder / "user_model.py").open("a") as file:
        file.write(
            """

def collate_fn(items):
    return torch.stack([item[0] for item in items]), {"y": torch.stack([item[1] for item in items]), "n": len(items)}


def loss_fn(outputs, targets):
    return F.cross_entropy(outputs, targets["y"], reduction="sum") / targets["n"]
"""
        )
    edit(
        folder / "train.py",
        "loss_fn=user_model.loss_fn,",
        "loss_fn=user_model.loss_fn, collate_fn=user_model.collate_fn,",
    )
    results = launch(folder, 3, "--no-shuffle", "--steps", 2, "--batch-size", 16)
    assert [result.status for result in results] == [1, 1, 1]
    # Before step 1 all ranks run on two items.
    what = "DisagreementError: targets {'y': Slot(index=0), 'n': 16} were agreed on as {'y': Slot(index=0), 'n': 2}"
    told = [last_line(result.err) for result in results[:2]]
    assert any(line.startswith(f"error: rank {rank} (conv {rank}), step 1: {what}") for rank, line in enumerate(told))


def test_a_loss_without_gradient_on_one_rank_is_an_error_at_once(tmp_path: Path) -> None:
    folder = small_program(tmp_path / "out", "small_cnn", "whole")
    with (folder / "user_model.py").open("a") as file:
        file.write(
            """

calls = 0


def loss_fn(outputs, targets):
    global calls
    calls += 1
    if calls == 3 and os.environ["RANK"] == "1":
        return outputs.new_zeros(())
    return F.cross_entropy(outputs, targets)
"""
        )
    results = launch(folder, 2, "--no-shuffle", "--steps", 4, "--batch-size", 16, "--timeout", 1000)
    assert [result.status for result in results] == [1, 1]
    told = "ValueError: loss_fn gave a loss without gradient"
    assert last_line(results[1].err).startswith(f"error: rank 1 (worker 1), step 2: {told}")


def test_a_parameter_that_the_ranks_have_not_agreed_to_sum_may_not_get_a_gradient(tmp_path: Path) -> None:
    folder = small_program(tmp_path / "out", "small_cnn", "whole")
    forward = "FcStage.forward(self, ConvStage.forward(self, x))"
    late = f"{forward} + (self.unused.weight.sum() if next(self.calls) > 2 else 0.0)"
    edit(folder / "model_stage.py", forward, late)
    edit(folder / "model_stage.py", "for stage in", "self.calls = itertools.count()\n        for stage in")
    edit(folder / "model_stage.py", "from conv_stage", "import itertools\n\nfrom conv_stage")
    results = launch(folder, 2, "--no-shuffle", "--steps", 4, "--batch-size", 16)
    assert [result.status for result in results] == [1, 1]
    # once before step 1, once in each of the steps 1 and 2
    told = "ValueError: unused.weight got its first gradient after the first step"
    assert last_line(results[0].err).startswith(f"error: rank 0 (worker 0), step 3: {told}")


def test_sharded_hosts_are_refused_where_they_would_wait_for_themselves(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr("stanza_compiler.runtime.train.choose_backend", lambda *_: "nccl")
    program = Program(folder, stages={}, segments=(), build_model=dict, bind_inputs=dict)
    with pytest.raises(SystemExit):
        main(program, ["--placement", "sharded"])
    assert capsys.readouterr().err.startswith("error: --placement: sharded hosts send and receive at once")


def test_hosts_without_a_rank_are_refused_where_fc_takes_the_inputs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "0")
    segments = (
        Segment("fc", "front", takes=("x",), gives=("h",)),
        Segment("conv", "forward", takes=("h",), gives=("y",)),
    )
    program = Program(folder, stages={}, segments=segments, build_model=dict, bind_inputs=dict)
    with pytest.raises(SystemExit):
        main(program, ["--placement", "dedicated", "--conv-workers", "1", "--fc-workers", "2"])
    told = "error: --fc-workers: 2 hosts for 1 CONV ranks, whose inputs FC takes first; pass fewer\n"
    assert capsys.readouterr().err == told
