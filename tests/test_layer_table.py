"""Ops as rows, and rows as runs."""

import doctest
from dataclasses import replace

from stanza_compiler import layer_table
from stanza_compiler.layer_table import layers, merged
from stanza_compiler.plan import Stage
from tests.small_plan import GRAPH, PLAN


def test_the_documented_examples_hold() -> None:
    assert doctest.testmod(layer_table).failed == 0


def test_a_parameter_counts_where_it_is_used_first() -> None:
    again = replace(GRAPH.ops[0], name="body.conv#2", inputs=("flatten",))
    rows = layers(PLAN, replace(GRAPH, ops=(*GRAPH.ops, again)))
    assert [row.parameter_bytes for row in rows] == [100, 0, 0, 900, 0, 0]


def test_an_op_that_two_stages_recompute_is_on_both_sides() -> None:
    conv, fc = PLAN.stages
    both = Stage(fc.role, (("body.relu", *fc.segments[0]),), 3, fc.parameters, fc.parameter_bytes, fc.forward_flops)
    rows = layers(replace(PLAN, stages=(conv, both)), GRAPH)
    assert [row.side for row in rows] == ["conv", "conv, fc", "conv", "fc", "fc"]


def test_merging_loses_no_computation_and_never_joins_two_sides() -> None:
    rows = layers(PLAN, GRAPH)
    runs = merged(rows, limit=1)
    assert [(run.side, run.ops) for run in runs] == [("conv", 3), ("fc", 2)]
    assert sum(run.forward_flops for run in runs) == sum(row.forward_flops for row in rows)
    assert sum(run.parameter_bytes for run in runs) == sum(row.parameter_bytes for row in rows)
    assert merged(rows, limit=5) == rows
