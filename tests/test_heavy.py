"""What heavy parameters cost data-parallel, by hand."""

from dataclasses import replace

import pytest

from stanza_compiler.cluster import Cluster
from stanza_compiler.heavy import heavy_parameters
from stanza_compiler.opgraph import Op, OpGraph
from stanza_compiler.plan import HeavyParameter
from tests.hand_graphs import parameter, value

FOUR = Cluster(nodes=4, gpus_per_node=1, bandwidth_bit_per_s=8e3)


def graph(lookups: float) -> OpGraph:
    ops = (
        Op("bag", "EmbeddingBag", ("x",), value("bag", 40), parameters=("table",), sparse_lookups=lookups),
        Op("body", "Linear", ("bag",), value("body", 4), parameters=("wide", "small", "frozen")),
    )
    held = (parameter("small", 1), parameter("frozen", 500, trainable=False), parameter("wide", 250))
    return OpGraph("g", 4, (value("x", 24, requires_grad=False),), ops, ("body",), (*held, parameter("table", 1000)))


def test_a_sparse_table_costs_its_rows_and_a_dense_one_all_of_it() -> None:
    roles = {"table": "fc", "wide": "conv", "small": "conv", "frozen": "conv"}
    # A ring over 4 ranks sends 3/2 of 1,000 bytes; 4 samples x 3 rows of 4 + 8 bytes go to 3 others.
    wide = HeavyParameter("wide", "conv", 1000, None, 2 * 3 * 1000, pytest.approx(1.5))
    sparse = HeavyParameter("table", "fc", 4000, 12, pytest.approx(4 * 3 * 12 * 12), pytest.approx(3 * 0.144))
    assert heavy_parameters(graph(3), roles, 4, FOUR, samples=4) == (sparse, wide)
    dense = HeavyParameter("table", "fc", 4000, None, 2 * 3 * 4000, pytest.approx(6))
    assert heavy_parameters(graph(0), roles, 4, FOUR, samples=4) == (dense, wide)


def test_parameters_below_a_hundredth_of_the_bytes_and_frozen_ones_are_left_out() -> None:
    names = [each.name for each in heavy_parameters(graph(0), {}, 4, FOUR, samples=4)]
    assert names == ["table", "wide"]
    larger = replace(graph(0), parameters=(*graph(0).parameters[:3], parameter("table", 100_000)))
    assert [each.name for each in heavy_parameters(larger, {}, 4, FOUR, samples=4)] == ["table"]
