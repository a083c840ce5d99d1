"""How many bytes of gradients are sent and updated, by hand."""

import pytest

from stanza_compiler.gradients import Gradient, Table, gradients
from stanza_compiler.opgraph import Op, OpGraph
from tests.hand_graphs import parameter, value


def graph(*lookups: float, trainable: bool = True) -> OpGraph:
    """Ops one after the other that use the table `t` of 10 rows of 4 bytes, and each a weight of 8 bytes."""
    ops = [
        Op(f"op{place}", "Embedding", ("x",), value(f"op{place}", 4), parameters=("t",), sparse_lookups=count)
        for place, count in enumerate(lookups)
    ]
    ops.append(Op("last", "Linear", ("x",), value("last", 4), parameters=("w",)))
    held = (parameter("t", 10, trainable=trainable), parameter("w", 2), parameter("unused", 2))
    return OpGraph("g", 4, (value("x", 4, requires_grad=False),), tuple(ops), ("last",), held)


def test_a_dense_gradient_is_complete_after_its_first_user() -> None:
    assert gradients(graph(0, 0)) == {"op0": Gradient(40, saved_bytes=20), "last": Gradient(8, saved_bytes=4)}


def test_lookups_of_all_users_of_a_sparse_table_add_up() -> None:
    assert gradients(graph(2, 3)) == {"op0": Gradient(0, (Table(10, 4, 5),)), "last": Gradient(8, saved_bytes=4)}


def test_one_dense_user_makes_the_gradient_dense() -> None:
    assert gradients(graph(2, 0)) == {"op0": Gradient(40, saved_bytes=20), "last": Gradient(8, saved_bytes=4)}


def test_frozen_parameters_have_none() -> None:
    assert gradients(graph(2, trainable=False)) == {"last": Gradient(8, saved_bytes=4)}


def test_rows_are_sent_with_their_numbers_to_every_other_rank() -> None:
    gradient = Gradient(100, (Table(rows=1000, row_bytes=16, lookups=2),))
    assert gradient.rows_bytes(5) == 100 + 10 * (16 + 8)
    # A ring over 3 ranks sends 2(n-1)/n = 4/3 of its bytes; each rank's 10 rows go to 2 others.
    assert gradient.ring_bytes(3, 5) * 4 / 3 == pytest.approx(100 * 4 / 3 + 2 * 10 * (16 + 8))
    assert gradient.updated_bytes(3, 5) == 100 + 30 * 16


def test_no_more_rows_are_touched_than_there_are() -> None:
    gradient = Gradient(0, (Table(rows=12, row_bytes=4, lookups=2),))
    assert gradient.rows_bytes(5) == 10 * 12
    assert gradient.rows_bytes(6) == gradient.rows_bytes(100) == 12 * 12
    assert gradient.updated_bytes(3, 5) == 12 * 4
