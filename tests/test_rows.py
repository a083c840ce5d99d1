"""Cuts side by side are the legal ones, each with the sums that the cost model has for it."""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

from stanza_compiler.cluster import Cluster
from stanza_compiler.cost_model import Batch, price_cut, separate_costs
from stanza_compiler.cuts import cut_space
from stanza_compiler.dominance import Dominance
from stanza_compiler.opgraph import OpGraph, Rules
from stanza_compiler.plan import Allocation
from stanza_compiler.rows import Pricing, Sums
from stanza_compiler.tally import BOUNDARY_BYTES, OPS, WORK, iteration_s, tally
from stanza_compiler.windows import Window
from tests.hand_graphs import every_cut, random_models
from tests.test_search import batches, clusters


@settings(max_examples=30, derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(random_models(), clusters, batches)
def test_every_cut_is_there_once_with_its_price(model: tuple[OpGraph, Rules], cluster: Cluster, batch: Batch) -> None:
    graph, rules = model
    cuts = cut_space(graph, Rules(together=rules.together, order=rules.order))
    legal = every_cut(cuts)
    assume(legal)
    ranks = cluster.world_size
    choices = [separate_costs(graph, Allocation(ranks, hosts, "colocated"), cluster, batch) for hosts in (1, ranks)]
    choices.append(separate_costs(graph, Allocation(ranks, 1, "dedicated"), cluster, batch))
    sums = tally(choices, cuts)
    nothing = Dominance((False,) * len(cuts.groups), (False,) * len(cuts.groups))
    window = Window(tuple(range(len(cuts.groups))), tuple(range(len(sums.group))))
    start = Sums(sums.start[:, None], np.zeros((len(choices), 1)))
    rows = Pricing(sums, cuts, nothing, window, start, drop=False).rows(10**6)
    assert rows is not None
    works = sums.ops[:, WORK].sum()
    both = [cut for cut, work in enumerate(rows.sums.sums[WORK]) if 0 < work < works]
    sides = [cuts.everything & ~sum(1 << number for number in rows.path(cut)) for cut in both]
    assert sorted(sides) == sorted(legal)
    times_s = iteration_s(sums, rows.sums.sums, rows.sums.peak_s)
    for cut, side in zip(both, sides, strict=True):
        fc_ops = cuts.ops(side)
        for costs, time_s in zip(choices, times_s[:, cut], strict=True):
            assert time_s == pytest.approx(price_cut(costs, fc_ops).iteration_s, rel=1e-12)
        crossing = sum(tensor.value.bytes_at(1) for tensor in choices[0].tensors if tensor.crosses(fc_ops))
        assert rows.sums.sums[BOUNDARY_BYTES, cut] == crossing
        assert rows.sums.sums[OPS, cut] == len(sums.group) - len(fc_ops)
    assert rows.path(rows.full) == set(window.groups)
    assert Pricing(sums, cuts, nothing, window, start, drop=False).rows(len(rows.parent) - 1) is None
