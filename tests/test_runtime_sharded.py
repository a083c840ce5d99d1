"""FC layers whose columns the hosts share, against one-process loops written here by hand."""

import json
from pathlib import Path

import pytest

from tests.launch import run
from tests.test_runtime_exactness import assert_equal, small_loop, small_program


@pytest.mark.parametrize(
    ("world_size", "flags", "global_batch"),
    [
        (3, ("--batch-size", 16), 48),
        # ten classes over two hosts, and a last batch of one item: CONV ranks 1 and 2 have none
        (3, ("--fc-workers", 2, "--global-batch-size", 37), 37),
    ],
    ids=["3-hosts", "2-hosts-empty-parts"],
)
def test_sharded_training_equals_one_process(
    tmp_path: Path, world_size: int, flags: tuple[object, ...], global_batch: int
) -> None:
    folder = small_program(tmp_path / "out")
    files = ("--export", tmp_path / "a.pt", "--metrics", tmp_path / "m.jsonl")
    run(folder, world_size, "--placement", "sharded", "--no-shuffle", "--steps", 8, *flags, *files)
    expected, losses = small_loop(global_batch, 8)
    assert_equal(tmp_path / "a.pt", expected)
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == pytest.approx(losses, rel=1e-5)
