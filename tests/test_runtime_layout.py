"""Who is who, and which flags say so."""

from pathlib import Path

import pytest

from stanza_compiler.runtime.arguments import Arguments, choose_layout, parse
from stanza_compiler.runtime.errors import UsageError
from stanza_compiler.runtime.layout import Layout
from stanza_compiler.runtime.plan_file import Sharding


@pytest.mark.parametrize(
    ("layout", "world_size", "hosts", "blocks"),
    [
        (Layout(2, 1, "dedicated"), 3, (2,), [[0, 1]]),
        (Layout(3, 2, "dedicated"), 5, (3, 4), [[0, 1], [2]]),
        (Layout(7, 3, "dedicated"), 10, (7, 8, 9), [[0, 1, 2], [3, 4], [5, 6]]),
        (Layout(1, 2, "dedicated"), 3, (1, 2), [[0], []]),
        (Layout(3, 1, "colocated"), 3, (0,), [[0, 1, 2]]),
        (Layout(5, 2, "colocated"), 5, (0, 3), [[0, 1, 2], [3, 4]]),
        (Layout(5, 3, "sharded"), 5, (0, 2, 4), [[0, 1], [2, 3], [4]]),
        (Layout(4, 0, "data-parallel"), 4, (), []),
    ],
)
def test_hosts_own_contiguous_blocks_the_first_ones_larger(
    layout: Layout, world_size: int, hosts: tuple[int, ...], blocks: list[list[int]]
) -> None:
    assert layout.world_size == world_size
    assert layout.hosts == hosts
    assert [list(block) for block in layout.blocks] == blocks
    for host, block in zip(hosts, blocks, strict=True):
        assert list(layout.block_of(host)) == block
        assert [layout.host_of(rank) for rank in block] == [host] * len(block)


def test_a_rank_is_described_by_its_roles() -> None:
    colocated = Layout(3, 2, "colocated")
    assert [colocated.describe(rank) for rank in range(3)] == [
        "conv 0 and fc host 0",
        "conv 1",
        "conv 2 and fc host 1",
    ]
    assert Layout(2, 1, "dedicated").describe(2) == "fc host 0"


DEDICATED, COLOCATED = Layout(9, 1, "dedicated"), Layout(8, 2, "colocated")


@pytest.mark.parametrize(
    ("planned", "arguments", "world_size", "expected"),
    [
        (DEDICATED, Arguments(), 10, DEDICATED),
        (DEDICATED, Arguments(), 3, Layout(2, 1, "dedicated")),
        (DEDICATED, Arguments(), 40, Layout(36, 4, "dedicated")),
        (COLOCATED, Arguments(), 3, Layout(3, 1, "colocated")),
        (COLOCATED, Arguments(), 16, Layout(16, 4, "colocated")),
        (DEDICATED, Arguments(fc_workers=2), 5, Layout(3, 2, "dedicated")),
        (DEDICATED, Arguments(conv_workers=3), 5, Layout(3, 2, "dedicated")),
        (DEDICATED, Arguments(placement="colocated", fc_workers=2), 3, Layout(3, 2, "colocated")),
        (COLOCATED, Arguments(placement="dedicated"), 4, Layout(3, 1, "dedicated")),
        (DEDICATED, Arguments(), 1, DEDICATED),
        (DEDICATED, Arguments(conv_workers=2), 1, Layout(2, 1, "dedicated")),
        (Layout(4, 0, "data-parallel"), Arguments(), 3, Layout(3, 0, "data-parallel")),
        (Layout(2, 2, "dedicated"), Arguments(), 3, Layout(2, 1, "dedicated")),
    ],
)
def test_flags_decide_then_the_plan_scaled(
    planned: Layout, arguments: Arguments, world_size: int, expected: Layout
) -> None:
    assert choose_layout(arguments, planned, world_size) == expected


@pytest.mark.parametrize(
    ("planned", "arguments", "world_size"),
    [
        (DEDICATED, Arguments(conv_workers=2, fc_workers=2), 3),
        (DEDICATED, Arguments(fc_workers=3), 3),
        (COLOCATED, Arguments(conv_workers=2), 3),
        (COLOCATED, Arguments(fc_workers=4), 3),
        (COLOCATED, Arguments(single_process=True), 3),
        (Layout(4, 0, "data-parallel"), Arguments(fc_workers=1), 3),
        (Layout(4, 0, "data-parallel"), Arguments(placement="dedicated"), 3),
    ],
)
def test_contradicting_flags_are_refused(planned: Layout, arguments: Arguments, world_size: int) -> None:
    with pytest.raises(UsageError):
        choose_layout(arguments, planned, world_size)


def test_an_export_that_cannot_be_written_is_told_before_training(tmp_path: Path) -> None:
    for flag in ("--export", "--metrics"):
        with pytest.raises(UsageError, match="is a folder"):
            parse([flag, str(tmp_path)])


def test_one_host_sees_the_whole_batch_where_samples_influence_each_other() -> None:
    planned = Layout(2, 1, "colocated")
    assert choose_layout(Arguments(), planned, 4, single_host="the loss") == Layout(4, 1, "colocated")
    with pytest.raises(UsageError, match="whole batch: the loss"):
        choose_layout(Arguments(fc_workers=2), planned, 4, single_host="the loss")


@pytest.mark.parametrize(
    "flags",
    [
        ["--steps", "0"],
        ["--steps", "3", "--epochs", "1"],
        ["--batch-size", "4", "--global-batch-size", "8"],
        ["--conv-workers", "-1"],
        ["--timeout", "0"],
        ["--timeout", "inf"],
        ["--resume"],
        ["--step", "3"],
    ],
)
def test_malformed_and_unknown_flags_exit_with_2(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse(flags)
    assert exit_info.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_a_file_to_write_needs_its_folder_before_training(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--export"):
        parse(["--export", str(tmp_path / "none" / "a.pt")])


SHARDED, SHARDING = Layout(8, 4, "sharded"), Sharding({"hidden": 40, "head": 6}, "")


@pytest.mark.parametrize(
    ("planned", "arguments", "world_size", "expected"),
    [
        (SHARDED, Arguments(), 8, SHARDED),
        (SHARDED, Arguments(), 4, Layout(4, 2, "sharded")),
        (SHARDED, Arguments(), 1, SHARDED),
        (SHARDED, Arguments(placement="colocated"), 8, Layout(8, 4, "colocated")),
        # Of a plan with other hosts: all ranks, but for the narrowest layer.
        (DEDICATED, Arguments(placement="sharded"), 5, Layout(5, 5, "sharded")),
        (DEDICATED, Arguments(placement="sharded"), 10, Layout(10, 6, "sharded")),
        (DEDICATED, Arguments(placement="sharded", fc_workers=2), 3, Layout(3, 2, "sharded")),
    ],
)
def test_sharded_layouts_follow_the_flags_or_the_plan(
    planned: Layout, arguments: Arguments, world_size: int, expected: Layout
) -> None:
    assert choose_layout(arguments, planned, world_size, sharding=SHARDING) == expected


@pytest.mark.parametrize(
    ("sharding", "arguments", "message"),
    [
        (
            Sharding({}, "norm (BatchNorm1d, m.py:4) is no Linear layer"),
            Arguments(placement="sharded"),
            "--placement: the FC part can't be sharded: norm (BatchNorm1d, m.py:4) is no Linear layer; ",
        ),
        (SHARDING, Arguments(placement="sharded", fc_workers=7), "--fc-workers: 7 hosts for a layer of 6 columns; "),
        (SHARDING, Arguments(placement="sharded", fc_workers=4), "--fc-workers: 4 hosts among 3 CONV ranks; "),
    ],
)
def test_what_cannot_be_shared_is_refused(sharding: Sharding, arguments: Arguments, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose_layout(arguments, DEDICATED, 3, sharding=sharding)
    assert str(caught.value).startswith(message)


def test_sharded_hosts_all_see_the_batch_that_one_host_must_see() -> None:
    layout = choose_layout(Arguments(), SHARDED, 8, single_host="the loss compares samples", sharding=SHARDING)
    assert layout == SHARDED
