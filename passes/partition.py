"""Decide which ops run where, on how many ranks, by the exact minimum of the cost model."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import asdict, replace
from typing import Any

from stanza_compiler.allocations import PLACEMENTS, allocations, world_size
from stanza_compiler.cluster import Cluster
from stanza_compiler.cost_model import (
    Batch,
    Costs,
    costs_on,
    data_parallel_on,
    parameter_server_1,
    parameter_server_n,
    price_cut,
    with_network,
)
from stanza_compiler.cuts import Cuts, cut_space, precedences
from stanza_compiler.dataflow import size_segments, tensors
from stanza_compiler.errors import PlanError
from stanza_compiler.front import ORDERS, FrontSpace, front_of, front_space
from stanza_compiler.heavy import heavy_parameters
from stanza_compiler.micro_batches import cut_step
from stanza_compiler.network import bucket_bytes, ring
from stanza_compiler.opgraph import OpGraph, Rules
from stanza_compiler.order_prices import order_prices
from stanza_compiler.plan import Boundary, Plan, Prediction, Request, Role, Sharding, Stage, Totals
from stanza_compiler.requested_cut import requested_cut
from stanza_compiler.roles import compute_heavy, large_tables, no_lookups
from stanza_compiler.search import Candidate, best, best_first, priced, search, search_front, settled
from stanza_compiler.sharded_search import search_sharded
from stanza_compiler.sharding import sharding_of
from stanza_compiler.ties import parted_notes
from stanza_compiler.verdict import PriceAt, alternatives, break_even_bit_per_s, reason, wins

# Parameters that stay in CONV are explained when they are more than this share of the model's bytes.
HEAVY_SHARE = 0.1


def partition(graph: OpGraph, rules: Rules, cluster: Cluster, request: Request) -> Plan:
    """The best legal plan for `graph` on `cluster`, beside what every strategy is predicted to take.

    Raises PlanError when the request can't be met.
    """
    if request.strategy not in ("auto", "separate", "data-parallel"):
        raise PlanError(graph.name, f"no strategy {request.strategy!r}", "use auto, separate or data-parallel")
    rules = _for_one_host(graph, rules)
    ranks = world_size(request, cluster)
    choices = allocations(graph.name, rules, request, ranks)
    cluster = replace(cluster, nodes=-(-ranks // cluster.gpus_per_node))
    batch = _batch(graph, request)
    is_free = request.fc_ops is None
    cuts = cut_space(graph, rules, one_cut=is_free and request.cut_after is None)
    fronts = front_space(
        graph, rules, *((compute_heavy(graph), no_lookups(graph), large_tables(graph)) if is_free else ())
    )
    front = front_of(graph, fronts.cuts, frozenset(request.fc_ops or ()))
    if front and request.placement == "sharded":
        what = "the FC part can't be sharded: a part of it stands before CONV"
        raise PlanError(graph.name, what, "use --placement colocated")
    asked = None if front else requested_cut(graph, rules, cuts, request)
    is_possible = choices or (request.placement == "sharded" and ranks > 1)
    why_not = "" if is_possible else f"{ranks} rank can't hold two roles apart"
    if all(map(fronts.why_not, ORDERS)) or request.cut_after is not None:
        why_not = _why_no_cut(graph, cuts) or why_not
    if why_not and request.strategy == "separate":
        raise PlanError(graph.name, f"{why_not}, nothing to separate", "use --strategy data-parallel")
    costs = [] if why_not else list(map(costs_on(graph, cluster, batch, request.codecs), choices))
    here = {placement: [each for each in costs if each.allocation.placement == placement] for placement in PLACEMENTS}
    if front:
        found = {
            placement: best_first([_requested(each, graph, rules, fronts, request, front) for each in priced_on])
            for placement, priced_on in here.items()
        }
    elif asked is not None:
        found = {placement: search(priced_on, cuts, asked) for placement, priced_on in here.items()}
    else:
        found = _searched(here, graph, cuts, fronts)
    found["sharded"] = ()
    if not front and not why_not:
        found["sharded"] = search_sharded(
            graph,
            rules.shardable,
            (cuts.with_in_conv(compute_heavy(graph)), cuts),
            asked,
            request=request,
            cluster=cluster,
            batch=batch,
            ranks=ranks,
        )
    whole_on = data_parallel_on(graph, ranks, cluster, batch, request.codecs)
    whole = whole_on(cluster)
    winner = best(ranked[0] for ranked in found.values() if ranked) if any(found.values()) else None
    if winner is None and not why_not:
        why_not = _why_no_cut(graph, cuts) or "no plan keeps all computation in CONV"
        if request.strategy == "separate":
            raise PlanError(graph.name, f"{why_not}, nothing to separate", "use --strategy data-parallel")
    separates = request.strategy == "separate" or (
        request.strategy == "auto" and winner is not None and wins(winner.prediction, whole)
    )
    if separates and winner:
        winner = settled(winner)
        placement = winner.prediction.allocation.placement
        found[placement] = (winner, *(each for each in found[placement] if each.plan != winner.plan))
    chosen = winner if separates else None
    micro_batches, cut_notes = cut_step(graph, rules, cluster, request, chosen)
    allocation = chosen.prediction.allocation if chosen else whole.allocation
    boundary = _boundary(graph, chosen.fc_ops, chosen.front) if chosen else ()
    stages = _stages(graph, chosen.fc_ops, chosen.front) if chosen else (_stage(graph, "model", [graph.op.keys()]),)
    return Plan(
        source=graph.name,
        model_hash="",
        front_end="",
        requires=(),
        batch_size=max(batch.parts(allocation.conv_workers)),
        cluster=_cluster_entry(cluster),
        verdict="separate" if chosen else "data-parallel",
        reason=reason(request.strategy, winner.prediction if winner else None, whole, why_not),
        totals=Totals(graph.parameter_bytes, graph.forward_flops, graph.constant_flops, len(graph.ops)),
        stages=stages,
        boundary=boundary,
        allocation=allocation,
        predictions={
            "data_parallel": whole,
            "parameter_server_1": parameter_server_1(graph, ranks, cluster, batch),
            "parameter_server_n": parameter_server_n(graph, ranks, cluster, batch),
            **{placement: ranked[0].prediction if ranked else None for placement, ranked in found.items()},
        },
        break_even_bit_per_s=_break_even(chosen or _rival(found), whole_on, cluster),
        alternatives=alternatives(graph, chosen.prediction if chosen else whole, whole, _runners_up(found, winner)),
        orders=order_prices(
            [candidate for ranked in found.values() for candidate in ranked],
            winner,
            chosen.prediction if chosen else whole,
            fronts,
            _why_no_cut(graph, cuts),
        )
        if winner and is_free and request.cut_after is None
        else (),
        heavy_parameters=heavy_parameters(
            graph,
            _trainers(graph, stages),
            ranks,
            cluster,
            max(batch.parts(ranks)),
            halved=request.codecs.halves_gradients,
        ),
        notes=(
            *rules.notes,
            *_coupling_notes(rules, chosen),
            *(_shared_notes(graph, chosen) if chosen else ()),
            *_sharding_notes(rules, chosen),
            *cut_notes,
            *(_heavy_notes(graph, rules, cuts, chosen) if chosen else ()),
        ),
        codecs=request.codecs,
        micro_batches=micro_batches,
        single_host=rules.single_host,
        sharding=_sharding(graph, rules, chosen),
        bucket_bytes=bucket_bytes(ring(range(allocation.conv_workers), cluster)),
    )


def _trainers(graph: OpGraph, stages: Sequence[Stage]) -> dict[str, str]:
    """The role that holds each parameter."""
    return {
        name: stage.role
        for stage in stages
        for segment in stage.segments
        for op in segment
        for name in graph.op[op].parameters
    }


def _coupling_notes(rules: Rules, chosen: Candidate | None) -> tuple[str, ...]:
    """What the plan means where samples of a batch influence each other."""
    if not rules.single_host:
        return ()
    if chosen:
        who = "every FC host" if chosen.shared else "one FC host"
        return (f"{rules.single_host}: {who} sees the whole batch",)
    return (f"{rules.single_host}: a data-parallel rank sees its own part alone, as under DistributedDataParallel",)


def _shared_notes(graph: OpGraph, chosen: Candidate) -> Iterator[str]:
    """Which parameters both roles hold, and what that costs."""
    ranks = chosen.prediction.allocation.world_size
    return parted_notes(graph, chosen.fc_ops, ranks, max(chosen.costs.parts), chosen.costs.all_ring)


def _sharding(graph: OpGraph, rules: Rules, chosen: Candidate | None) -> Sharding:
    """Whether hosts can share the FC part of the plan, whatever its placement."""
    if chosen is None:
        return Sharding({}, "the whole model is trained data-parallel")
    if chosen.front:
        return Sharding({}, "a part of FC stands before CONV")
    return sharding_of(graph, rules.shardable, chosen.fc_ops)


def _sharding_notes(rules: Rules, chosen: Candidate | None) -> tuple[str, ...]:
    if chosen is None or chosen.shared is None or not rules.shardable.takes_all:
        return ()
    return (f"loss_fn takes all scores ({rules.shardable.takes_all}), so that every sharded host gathers them",)


def _for_one_host(graph: OpGraph, rules: Rules) -> Rules:
    """The rules, and where a host must see the whole batch, that tensors which can't be joined to one don't cross."""
    if not rules.single_host:
        return rules
    apart = [tensor for tensor in tensors(graph) if tensor.value.kind == "per-rank"]
    return replace(
        rules,
        together=(*rules.together, *((tensor.maker, *tensor.readers) for tensor in apart if tensor.maker)),
        conv_only=(*rules.conv_only, *(name for tensor in apart if not tensor.maker for name in tensor.readers)),
        fc_only=(*rules.fc_only, *(tensor.maker for tensor in apart if tensor.maker and tensor.is_output)),
    )


def _searched(
    choices: dict[str, list[Costs]], graph: OpGraph, cuts: Cuts, fronts: FrontSpace
) -> dict[str, tuple[Candidate, ...]]:
    """The best plans by placement, with every compute-heavy op in CONV where any plan allows that."""
    kept = cuts.with_in_conv(compute_heavy(graph))
    if _why_no_cut(graph, kept):
        found = {placement: search_front(costs, fronts, ()) for placement, costs in choices.items()}
        if any(found.values()):
            return found
        kept = cuts
    found = {placement: search(costs, kept, None) for placement, costs in choices.items()}
    return {
        placement: best_first([*ranked, *search_front(choices[placement], fronts, ranked)])
        for placement, ranked in found.items()
    }


def _batch(graph: OpGraph, request: Request) -> Batch:
    if request.global_batch_size is not None:
        return Batch(request.global_batch_size, is_global=True)
    return Batch(request.batch_size or graph.batch_size)


def _why_no_cut(graph: OpGraph, cuts: Cuts) -> str:
    """Why no cut is legal, empty when one is."""
    if next(cuts.smallest(), None) is not None:
        return ""
    with_work = [op.name for op in graph.ops if op.has_work and op.name in cuts.group]
    if len(with_work) < 2:
        return f"only {'one op' if with_work else 'no op'} worth placing"
    return f"the rules leave all {len(with_work)} ops worth placing on one side"


def _cluster_entry(cluster: Cluster) -> dict[str, Any]:
    entry = asdict(cluster)
    device = entry.pop("device")
    return {**entry, "device": device.pop("name"), **device}


def _requested(
    costs: Costs, graph: OpGraph, rules: Rules, space: FrontSpace, request: Request, front: frozenset[str]
) -> Candidate:
    """The plan asked for, whose FC ops stand before CONV, and maybe behind it as well; it may part ties.

    Raises PlanError when it is illegal.
    """
    level = {op.name: 0 if op.name in front else 2 if op.name in (request.fc_ops or ()) else 1 for op in graph.ops}
    for earlier, later, why in precedences(graph, rules, one_cut=False):
        if level[earlier] > level[later]:
            what = f"the plan is no legal cut: {why}, and would run in an earlier segment"
            raise PlanError(graph.name, what, f"move {earlier} or {later}, or leave it to the compiler")
    groups = space.cuts.group
    fc_groups = sum(1 << number for number in {groups[name] for name in request.fc_ops or () if name in groups})
    front_groups = sum(1 << number for number in {groups[name] for name in front})
    if not replace(space, ties=()).is_legal(front_groups, fc_groups & ~front_groups):
        what = (
            "the plan is no legal cut: it leaves one side without work, asks in front for the size of a batch that "
            "doesn't go there, or leaves to CONV a loss that needs the whole batch"
        )
        raise PlanError(graph.name, what, "move the cut, or leave it to the compiler")
    return priced(costs, space.cuts, fc_groups, front_groups)


def _stages(graph: OpGraph, fc_ops: frozenset[str], front: frozenset[str]) -> tuple[Stage, ...]:
    """One stage per role, the first one to run first; size arithmetic is where it first can be."""
    back = fc_ops - front
    behind = back | size_segments(graph, back)
    if not front:
        return _stage(graph, "conv", [graph.op.keys() - behind]), _stage(graph, "fc", [behind])
    conv = graph.op.keys() - fc_ops
    in_conv = (conv & {op.name for op in graph.ops if not op.is_size}) | size_segments(graph, frozenset(conv)) - behind
    ahead = graph.op.keys() - in_conv - behind
    return _stage(graph, "fc", [ahead, *([behind] if back else [])]), _stage(graph, "conv", [in_conv])


def _stage(graph: OpGraph, role: Role, segments: Sequence[Set[str]]) -> Stage:
    names = frozenset().union(*segments)
    ops = [op for op in graph.ops if op.name in names]
    parameters = [graph.parameter[name] for name in dict.fromkeys(name for op in ops for name in op.parameters)]
    return Stage(
        role=role,
        segments=tuple(tuple(op.name for op in graph.ops if op.name in segment) for segment in segments),
        ops=len(ops),
        parameters=sum(parameter.elements for parameter in parameters),
        parameter_bytes=sum(parameter.bytes for parameter in parameters),
        forward_flops=sum(op.forward_flops for op in ops),
    )


def _boundary(graph: OpGraph, fc_ops: frozenset[str], front: frozenset[str]) -> tuple[Boundary, ...]:
    """What crosses between CONV's ranks, who read the inputs, and FC's hosts, and what FC has for itself (0 to 2)."""
    back = fc_ops - front
    conv = 1 if front else 0
    crossing = []
    for tensor in tensors(graph):
        if tensor.goes_to_front(front):
            crossing.append((tensor.value, conv, 0))
        if tensor.comes_down(front, back):
            crossing.append((tensor.value, 0, conv))
        if tensor.stays(front, back):
            crossing.append((tensor.value, 0, 2))
        if tensor.goes_up(front, back):
            crossing.append((tensor.value, conv, conv + 1))
    return tuple(
        Boundary(
            name=value.name,
            shape=value.shape,
            dtype=value.dtype,
            kind=value.kind,
            batch_axis=value.batch_axis,
            bytes_per_sample=value.bytes_per_sample,
            requires_grad=value.requires_grad,
            from_segment=from_segment,
            to_segment=to_segment,
        )
        for value, from_segment, to_segment in crossing
    )


def _rival(found: dict[str, tuple[Candidate, ...]]) -> Candidate | None:
    """The best separate plan that sends anything: as many hosts as ranks is data-parallel by another name."""
    sending = [candidate for ranked in found.values() for candidate in ranked if candidate.costs.traffic.ranks]
    return best(sending) if sending else None


def _break_even(plan: Candidate | None, whole_on: PriceAt, cluster: Cluster) -> float | None:
    if plan is None:
        return None

    def price_at(network: Cluster) -> Prediction:
        if plan.shared is not None:
            return plan.shared.price(plan.fc_ops, plan.prediction.allocation.fc_workers, network)
        return price_cut(with_network(plan.costs, network), plan.fc_ops, plan.front)

    return break_even_bit_per_s(price_at, whole_on, cluster)


def _runners_up(found: dict[str, tuple[Candidate, ...]], winner: Candidate | None) -> list[Candidate]:
    """The best cut of each allocation, and the winning allocation's two next cuts."""
    runners_up: list[Candidate] = []
    for ranked in found.values():
        seen: dict[int, int] = {}
        for candidate in ranked:
            hosts = candidate.prediction.allocation.fc_workers
            seen[hosts] = seen.get(hosts, 0) + 1
            is_winners = winner and candidate.prediction.allocation == winner.prediction.allocation
            if seen[hosts] <= (3 if is_winners else 1):
                runners_up.append(candidate)
    return runners_up


def _heavy_notes(graph: OpGraph, rules: Rules, cuts: Cuts, chosen: Candidate) -> Sequence[str]:
    """Why the heaviest op of CONV stays there, when CONV keeps many parameters."""
    if chosen.front:
        return ()
    op_bytes = {
        op.name: sum(graph.parameter[name].bytes for name in op.parameters)
        for op in graph.ops
        if op.parameters and op.name not in chosen.fc_ops
    }
    kept_bytes = sum(
        graph.parameter[name].bytes for name in {name for op in op_bytes for name in graph.op[op].parameters}
    )
    if not op_bytes or kept_bytes <= HEAVY_SHARE * graph.parameter_bytes:
        return ()
    heaviest = max(op_bytes, key=op_bytes.__getitem__)
    moved = chosen.fc_groups | cuts.later[cuts.group[heaviest]]
    kept = f"{kept_bytes / graph.parameter_bytes:.0%} of the parameter bytes stay in CONV"
    head = f"{kept}, the heaviest op is {heaviest} ({op_bytes[heaviest] / 1e6:.1f} MB)"
    if not cuts.is_legal(moved):
        return (f"{head}: it is compute-heavy or bound to ops that are",)
    if chosen.shared is None:
        other = price_cut(chosen.costs, cuts.ops(moved))
    elif sharding_of(graph, rules.shardable, cuts.ops(moved)).why_not:
        return (f"{head}: with it in FC hosts could not share that",)
    else:
        other = chosen.shared.price(cuts.ops(moved), chosen.prediction.allocation.fc_workers)
    longer_s = other.iteration_s - chosen.prediction.iteration_s
    return (f"{head}: with it in FC a step would take {longer_s * 1e3:.1f} ms longer",)
