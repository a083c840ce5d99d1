"""Every FC part that hosts can share by columns, priced."""

from stanza_compiler.allocations import sharded_hosts
from stanza_compiler.cluster import Cluster
from stanza_compiler.cost_model import Batch
from stanza_compiler.cuts import Cuts
from stanza_compiler.errors import PlanError
from stanza_compiler.opgraph import OpGraph, Shardable
from stanza_compiler.plan import Request
from stanza_compiler.search import Candidate, best_first
from stanza_compiler.sharded_cost import ShardedPrices
from stanza_compiler.sharding import shardable_cuts, sharding_of


def search_sharded(
    graph: OpGraph,
    shardable: Shardable,
    cuts: tuple[Cuts, ...],
    asked: int | None,
    *,
    request: Request,
    cluster: Cluster,
    batch: Batch,
    ranks: int,
) -> tuple[Candidate, ...]:
    """The plans best first: of `asked`, else of all cuts of the first of `cuts` that has one; empty where none is.

    Raises PlanError when sharded hosts were asked for and nothing can be shared, naming the op in the way.
    """
    if request.placement not in ("sharded", "auto"):
        return ()
    if asked is not None:
        groups = [asked] if not sharding_of(graph, shardable, cuts[-1].ops(asked)).why_not else []
    else:
        groups = next(filter(None, (list(shardable_cuts(graph, shardable, each)) for each in cuts)), [])
    if not groups:
        if request.placement == "sharded":
            why = sharding_of(graph, shardable, cuts[-1].ops(asked) if asked is not None else _last(graph, cuts[-1]))
            what = why.why_not or "no legal cut leaves FC a chain of Linear layers"
            raise PlanError(graph.name, f"the FC part can't be sharded: {what}", "use --placement colocated")
        return ()
    prices = ShardedPrices(graph, shardable, cluster, batch, ranks, request.codecs)
    found = []
    for each in groups:
        fc_ops = cuts[-1].ops(each)
        widths = sharding_of(graph, shardable, fc_ops).columns.values()
        boundary_bytes = sum(tensor.value.bytes_at(1) for tensor in prices.base.tensors if tensor.crosses(fc_ops))
        for hosts in sharded_hosts(graph.name, request, ranks, min(widths)):
            prediction = prices.price(fc_ops, hosts)
            found.append(Candidate(prediction, prices.base, each, fc_ops, boundary_bytes, shared=prices))
    return best_first(found)


def _last(graph: OpGraph, cuts: Cuts) -> frozenset[str]:
    """The least that FC could hold: the last op with work, and all after it."""
    placed = [op for op in graph.ops if op.name in cuts.group]
    start = max((place for place, op in enumerate(placed) if op.has_work), default=0)
    return frozenset(op.name for op in placed[start:])
