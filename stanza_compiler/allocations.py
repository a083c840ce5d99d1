"""How many ranks may train CONV, and how many host FC."""

from stanza_compiler.cluster import Cluster
from stanza_compiler.errors import PlanError
from stanza_compiler.opgraph import Rules
from stanza_compiler.plan import Allocation, Request

PLACEMENTS = ("dedicated", "colocated")


def world_size(request: Request, cluster: Cluster) -> int:
    """Ranks that train: the cluster's, unless the worker counts asked for make another number.

    Data-parallel: as many as CONV workers. Both counts: their sum, or the CONV workers alone if hosts are among them
    (colocated or sharded, or the counts fill the cluster only so). CONV workers alone: as many when colocated or
    sharded, or when the cluster has fewer ranks.
    """
    ranks, conv_workers, fc_workers = cluster.world_size, request.conv_workers, request.fc_workers
    if request.strategy == "data-parallel":
        return conv_workers or ranks
    if conv_workers is None or request.placement == "dedicated":
        return conv_workers + fc_workers if conv_workers and fc_workers else ranks
    if request.placement in ("colocated", "sharded") or (conv_workers >= ranks and fc_workers is None):
        return conv_workers
    return conv_workers + fc_workers if fc_workers and conv_workers != ranks else ranks


def allocations(graph_name: str, rules: Rules, request: Request, ranks: int) -> tuple[Allocation, ...]:
    """Every allocation of `ranks` ranks that the request and the rules allow, dedicated ones first, none sharded.

    Empty when none is but none was asked for either. Raises PlanError when the request can't be met.
    """
    if request.placement == "sharded":
        return ()
    if request.placement not in (*PLACEMENTS, "auto"):
        known = ", ".join((*PLACEMENTS, "sharded"))
        raise PlanError(graph_name, f"no placement {request.placement!r}", f"use {known} or auto")
    wanted = PLACEMENTS if request.placement == "auto" else (request.placement,)
    # A host without CONV workers would idle; only the user may ask for one.
    most_hosts = ranks - 1 if request.fc_workers is not None else ranks // 2
    dedicated = (Allocation(ranks - hosts, hosts, "dedicated") for hosts in range(1, most_hosts + 1))
    colocated = (Allocation(ranks, hosts, "colocated") for hosts in range(1, ranks + 1))
    fitting = [
        allocation
        for allocation in (*dedicated, *colocated)
        if allocation.placement in wanted
        and request.conv_workers in (None, allocation.conv_workers)
        and request.fc_workers in (None, allocation.fc_workers)
    ]
    legal = tuple(allocation for allocation in fitting if allocation.fc_workers == 1 or not rules.single_host)
    asked = request.strategy == "separate" or request.conv_workers is not None or request.fc_workers is not None
    if asked and not legal:
        if fitting:
            raise PlanError(
                graph_name, f"one FC host must see the whole batch: {rules.single_host}", "pass --fc-workers 1"
            )
        raise PlanError(graph_name, _why_none_fits(request, ranks), "pass other worker counts, --placement or --nodes")
    return legal


def sharded_hosts(graph_name: str, request: Request, ranks: int, narrowest: int) -> range:
    """How many of `ranks` CONV ranks may share an FC part whose narrowest layer has so many columns.

    One host shares with nobody: only the user may ask for it. Raises PlanError when sharded hosts were asked for that
    do not fit.
    """
    if request.placement not in ("sharded", "auto"):
        return range(0)
    asked, most = request.fc_workers, min(ranks, narrowest)
    fits = request.conv_workers in (None, ranks) and (asked is None or 1 <= asked <= most) and ranks > 1
    if not fits:
        if request.placement == "sharded":
            if asked is not None and narrowest < asked <= ranks:
                what = f"{asked} hosts for a layer of {narrowest} columns"
                raise PlanError(graph_name, what, "pass fewer --fc-workers")
            raise PlanError(graph_name, _why_none_fits(request, ranks), "pass other worker counts or --nodes")
        return range(0)
    return range(2, most + 1) if asked is None else range(asked, asked + 1)


def _why_none_fits(request: Request, ranks: int) -> str:
    counts = ((request.conv_workers, "CONV"), (request.fc_workers, "FC"))
    asked = " and ".join(f"{count} {role} workers" for count, role in counts if count is not None)
    placement = "" if request.placement == "auto" else f" {request.placement}"
    return f"{asked or 'separate roles'} do not fit {ranks} rank{'s' if ranks > 1 else ''}{placement}"
