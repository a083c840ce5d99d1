"""The plans of the examples with tables in front, against thousands of others that obey the same rules."""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from stanza_compiler.cluster import Cluster
from stanza_compiler.compiler import compile_source
from stanza_compiler.cost_model import Batch, costs_on, price_cut
from stanza_compiler.dataflow import tensor_reads
from stanza_compiler.opgraph import OpGraph, Rules
from stanza_compiler.options import Options
from stanza_compiler.passes.partition import partition
from stanza_compiler.passes.profile import Profile
from stanza_compiler.plan import Allocation, Request
from stanza_compiler.roles import compute_heavy, large_tables, no_lookups
from tests.hand_graphs import is_legal

PLANS, NODES = 2000, 8
EXAMPLES = Path(__file__).parent.parent / "examples"
# A host without a CONV rank of its own would have nothing to do.
ALLOCATIONS = [Allocation(NODES - hosts, hosts, "dedicated") for hosts in range(1, NODES // 2 + 1)] + [
    Allocation(NODES, hosts, "colocated") for hosts in range(1, NODES + 1)
]


@cache
def example(name: str) -> tuple[OpGraph, Rules]:
    results: dict[str, object] = {}
    options = Options(source=str(EXAMPLES / f"{name}.py"), dry_run=True, verify=False)
    compile_source(options, on_pass=lambda passed, result, _: results.update({passed: result}))
    profiled, rules = results["profile"], results["legality"]
    assert isinstance(profiled, Profile)
    assert isinstance(rules, Rules)
    return profiled.graph, rules


def random_cuts(graph: OpGraph, rules: Rules, seed: int) -> Iterator[tuple[frozenset[str], frozenset[str]]]:
    """(front, behind) of legal plans: compute-heavy ops in CONV, lookups alone in front, all large tables or none."""
    chance = random.Random(seed)
    reads = {name: [source for source in names if source in graph.op] for name, names in tensor_reads(graph).items()}
    readers: dict[str, list[str]] = {name: [] for name in reads}
    for name, sources in reads.items():
        for source in sources:
            readers[source].append(name)
    users: dict[str, list[str]] = {}
    for name in reads:
        for parameter in graph.op[name].parameters:
            users.setdefault(parameter, []).append(name)
    heavy, not_in_front, tables = set(compute_heavy(graph)), set(no_lookups(graph)), set(large_tables(graph))
    behind, ahead = set[str](), set[str]()  # ops that can't be in front, and that can't be behind
    for name in reads:
        if name in heavy or name in not_in_front or not behind.isdisjoint(reads[name]):
            behind.add(name)
    for name in reversed(reads):
        if name in heavy or not ahead.isdisjoint(readers[name]):
            ahead.add(name)
    ends = [(name, 0) for name in reads if name not in behind] + [(name, 2) for name in reads if name not in ahead]
    known: dict[tuple[frozenset[str], frozenset[str]], bool] = {}
    while True:
        level = dict.fromkeys(reads, 1)
        waiting = [chance.choice(ends) for _ in range(chance.randint(1, 4))]
        while waiting:
            name, side = waiting.pop()
            if level[name] != side:
                level[name] = side
                waiting += [(other, side) for other in (reads if side == 0 else readers)[name]]
                for parameter in graph.op[name].parameters:
                    waiting += [(other, chance.choice((0, 2))) for other in users[parameter] if level[other] == 1]
                waiting += [(other, 0) for other in tables if name in tables and level[other] == 1]
        front = frozenset(name for name, side in level.items() if side == 0)
        back = frozenset(name for name, side in level.items() if side == 2)
        if (front, back) not in known:
            obeys = heavy.isdisjoint(front | back) and not_in_front.isdisjoint(front)
            all_or_none = len({name in front for name in tables}) < 2
            known[front, back] = obeys and all_or_none and is_legal(graph, rules, level)
        if known[front, back]:
            yield front, back


# With all of DLRM's large tables in front one cut is legal, on many allocations.
@pytest.mark.parametrize(("name", "cuts_seen"), [("gpt_small", 3), ("lstm_lm", 3), ("dlrm", 1)])
def test_no_random_plan_is_faster_than_the_one_chosen(name: str, cuts_seen: int) -> None:
    graph, rules = example(name)
    batch = Batch(graph.batch_size)
    cuts = random_cuts(graph, rules, seed=0)
    sampled = [next(cuts) for _ in range(PLANS)]
    assert len(set(sampled)) >= cuts_seen
    chance = random.Random(1)
    for gigabits in (1, 10, 100):
        cluster = replace(Cluster(nodes=NODES), bandwidth_bit_per_s=gigabits * 1e9)
        plan = partition(graph, rules, cluster, Request())
        separate = [plan.predictions[placement] for placement in ("dedicated", "colocated")]
        chosen_s = min(found.iteration_s / found.samples_per_step for found in separate if found)
        costs = cache(costs_on(graph, cluster, batch))
        least_s = min(
            each.iteration_s / each.samples_per_step
            for front, back in sampled
            for each in [price_cut(costs(chance.choice(ALLOCATIONS)), front | back, front)]
        )
        assert least_s >= chosen_s * (1 - 1e-9)


def test_large_tables_go_to_the_hosts_together_though_two_of_them_would_be_faster() -> None:
    graph, rules = example("dlrm")
    cluster = Cluster(nodes=3)
    request = Request(strategy="separate", placement="dedicated", conv_workers=2, fc_workers=1)
    plan = partition(graph, rules, cluster, request)
    tables = [f"tables.{number}" for number in range(4)]
    assert set(tables) <= {*plan.stage("fc").segments[0]}
    fewer = replace(request, fc_ops=("getitem_2", "tables.2", "getitem_3", "tables.3"))
    asked = partition(graph, rules, cluster, fewer)
    assert not {*tables[:2]} & {*asked.stage("fc").segments[0]}
    times = [each.predictions["dedicated"] for each in (plan, asked)]
    assert times[0]
    assert times[1]
    assert times[1].iteration_s < times[0].iteration_s
