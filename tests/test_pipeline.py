"""Schedules on a time axis, drawn and compared with pictures."""

import pytest

from stanza_compiler.pipeline import Seconds, schedules, simulate
from stanza_compiler.runtime.layout import Layout
from stanza_compiler.runtime.schedule import Action, Kind

TWO_AND_ONE = """
conv 0                F0---|F1---|F2---|B0------|B1------|B2------|
conv 1                F0---|F1---|F2---|B0------|B1------|B2------|
fc host 0              .  .  . f0|b0|f1|b1|f2|b2|late----| .  .  .
"""
COLOCATED = """
conv 0 and fc host 0  F0---|F1---|f0|b0|F2---|f1|b1|f2|b2|B0------|B1------|B2------|late----|
conv 1                F0---|F1---|F2---| . B0------| . B1------|B2------| .  .  .  .  .  .  .
"""
COUNT_FIRST = """
conv 0                F0---|F1---| .  .  .  . B0------|B1------|
conv 1                F0---|F1---| .  .  .  . B0------|B1------|
fc host 0              .  .  . f0| . f1|b0|b1|late----| .  .  .
"""

LETTERS = {
    Kind.FORWARD: "F",
    Kind.FC_FORWARD: "f",
    Kind.FC_BACKWARD: "b",
    Kind.BACKWARD: "B",
    Kind.LATE: "late",
}


def picture(layout: Layout, micro_batches: int, seconds: Seconds, *, count_first: bool = False) -> str:
    """A line a rank, three characters a second: the action's letter and micro-batch where it starts, dots for waits."""
    spans = simulate(layout, schedules(layout, micro_batches, count_first=count_first), seconds)
    width = max(span.stop for span in spans)
    lines = []
    for rank in range(layout.world_size):
        cells = [" . "] * round(width)
        for span in (span for span in spans if span.rank == rank):
            letter = LETTERS[span.action.kind]
            label = letter if span.action.kind == Kind.LATE else f"{letter}{span.action.micro}"
            start, stop = round(span.start), round(span.stop)
            text = label.ljust(3 * (stop - start), "-")[: 3 * (stop - start) - 1] + "|"
            cells[start:stop] = [text[index : index + 3] for index in range(0, len(text), 3)]
        lines.append(f"{layout.describe(rank):22}{''.join(cells)}".rstrip())
    return "\n".join(lines)


def test_a_host_takes_each_micro_batch_while_conv_makes_the_next() -> None:
    assert picture(Layout(2, 1, "dedicated"), 3, Seconds(2, 1, 1, 1, 1, 3, 3)) == TWO_AND_ONE.strip()


def test_a_colocated_host_is_one_micro_batch_ahead_with_conv() -> None:
    assert picture(Layout(2, 1, "colocated"), 3, Seconds(2, 1, 1, 1, 1, 3, 3)) == COLOCATED.strip()


def test_where_only_targets_say_what_to_divide_by_no_backward_precedes_the_last_forward() -> None:
    drawn = picture(Layout(2, 1, "dedicated"), 2, Seconds(2, 1, 1, 1, 1, 3, 3), count_first=True)
    assert drawn == COUNT_FIRST.strip()


@pytest.mark.parametrize("placement", ["dedicated", "colocated"])
@pytest.mark.parametrize("hosts", [1, 2, 3, 4])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("count_first", [False, True])
def test_no_schedule_waits_for_ever_and_each_does_everything_once(
    placement: str, hosts: int, micro_batches: int, count_first: bool
) -> None:
    layout = Layout(5, hosts, placement)
    ranks = {rank: list(some) for rank, some in schedules(layout, micro_batches, count_first=count_first).items()}
    simulate(layout, {rank: iter(some) for rank, some in ranks.items()}, Seconds(3, 1, 1, 1, 1, 5, 2))
    pieces = set(range(micro_batches))
    for rank, some in ranks.items():
        expected = [(Kind.FORWARD, Kind.SEND, Kind.COLLECT, Kind.BACKWARD)] * layout.is_conv(rank)
        expected += [(Kind.EXPECT, Kind.RECEIVE, Kind.FC_FORWARD, Kind.FC_BACKWARD)] * (rank in layout.hosts)
        kinds = [kind for several in expected for kind in several]
        once = [Kind.COUNT, Kind.LATE] if rank in layout.hosts else []
        assert sorted(some, key=str) == sorted(
            [Action(kind, micro) for kind in kinds for micro in pieces] + [Action(kind) for kind in once], key=str
        )


def test_ranks_that_wait_for_each_other_are_named() -> None:
    conv = [Action(Kind.FORWARD), Action(Kind.COLLECT), Action(Kind.SEND)]
    host = [Action(Kind.EXPECT), Action(Kind.RECEIVE), Action(Kind.FC_BACKWARD)]
    with pytest.raises(RuntimeError, match="rank 0 for COLLECT 0, rank 1 for RECEIVE 0"):
        simulate(Layout(1, 1, "dedicated"), {0: iter(conv), 1: iter(host)}, Seconds(1, 1, 1, 1, 1, 1))
