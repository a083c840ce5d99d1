"""What every order of segments takes, against brute force."""

from dataclasses import replace

import pytest

from stanza_compiler.cluster import Cluster, Device
from stanza_compiler.cost_model import Batch, price_cut, separate_costs
from stanza_compiler.opgraph import OpGraph, Rules
from stanza_compiler.passes.partition import partition
from stanza_compiler.plan import OrderPrice, Request
from tests.hand_graphs import alexnet, legal_fronts
from tests.test_front import language_model

SLOW = Cluster(
    nodes=4, gpus_per_node=1, bandwidth_bit_per_s=1e8, latency_s=50e-6, device=Device("toy", 1e12, 1e11, 10e-6)
)
BATCH = Batch(8)


def orders(graph: OpGraph, rules: Rules = Rules(), cluster: Cluster = SLOW) -> dict[str, OrderPrice]:  # noqa: B008  # frozen
    return {price.order: price for price in partition(graph, rules, cluster, Request()).orders}


@pytest.mark.parametrize("is_tied", [True, False])
def test_every_order_is_told_at_its_best(is_tied: bool) -> None:
    graph = language_model(20_000, 64, is_tied=is_tied)
    prices = orders(graph)
    assert list(prices) == ["conv-fc", "fc-conv", "fc-conv-fc"]
    assert prices["fc-conv-fc"].why == "chosen"
    heavy = {"body0", "body1"}
    for order, has_back in (("fc-conv", False), ("fc-conv-fc", True)):
        plans = [
            (front, back)
            for front, back in legal_fronts(graph, Rules())
            if bool(back) == has_back and not heavy & (front | back) and front == {"table"}
        ]
        assert bool(plans) == (prices[order].iteration_s is not None)
        if plans:
            allocation = prices[order].allocation
            assert allocation is not None
            costs = separate_costs(graph, allocation, SLOW, BATCH)
            least = min(price_cut(costs, front | back, front).iteration_s for front, back in plans)
            assert prices[order].iteration_s == pytest.approx(least)


def test_an_order_that_loses_says_where_its_time_goes() -> None:
    price = orders(language_model(20_000, 64, is_tied=False))["fc-conv"]
    assert price.why.endswith("ms longer in conv allreduce exposed, for 32 samples")


def test_an_order_that_does_not_exist_says_why() -> None:
    graph = language_model(20_000, 64, is_tied=False)
    assert orders(graph, Rules(single_host="the loss couples samples"))["fc-conv"].why == (
        "the loss needs the whole batch, which an FC host sees behind CONV"
    )
    assert orders(graph, Rules(fc_only=("head",)))["fc-conv"].why == "head must be in FC behind CONV"
    assert orders(language_model(20_000, 64, is_tied=True))["conv-fc"].why == (
        "the rules leave all 4 ops worth placing on one side"
    )


def test_where_data_parallel_wins_every_order_is_held_against_it() -> None:
    graph, fast = language_model(2_000, 64, is_tied=False), replace(SLOW, bandwidth_bit_per_s=1e13)
    prices = orders(graph, cluster=fast)
    assert partition(graph, Rules(), fast, Request()).verdict == "data-parallel"
    assert all(price.why != "chosen" for price in prices.values())
    assert sum(price.why.startswith("the best separation; ") for price in prices.values()) == 1


def test_where_nothing_stands_in_front_there_is_nothing_to_tell() -> None:
    assert orders(alexnet()) == {}
