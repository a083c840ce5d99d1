"""Iteration time of a strategy, one term a line of the report (docs/cost-model.md has the formulas)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

from stanza_compiler.cluster import Cluster, Device
from stanza_compiler.codecs import PLAIN, Codecs
from stanza_compiler.dataflow import Tensor, tensors
from stanza_compiler.gradients import Gradient, gradients
from stanza_compiler.network import (
    Channel,
    Link,
    all_traffic,
    blocks,
    host_links,
    host_ranks,
    one_server,
    ring,
    sharded_servers,
)
from stanza_compiler.op_time import backward_s, forward_s, late_share, needs_backward
from stanza_compiler.opgraph import OpGraph
from stanza_compiler.plan import TERMS, Allocation, Prediction
from stanza_compiler.ties import Tie, parted, reduction, ties

# An SGD step reads parameter, gradient and momentum and writes parameter and momentum.
OPTIMIZER_PASSES = 5


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one step: `samples` on every rank, or on all ranks together where `is_global`."""

    samples: int
    is_global: bool = False

    def parts(self, ranks: int) -> tuple[int, ...]:
        """Samples of each rank; of a global batch as numpy.array_split does it, the first ones one larger.

        >>> Batch(10, is_global=True).parts(4)
        (3, 3, 2, 2)
        """
        if not self.is_global:
            return (self.samples,) * ranks
        size, larger = divmod(self.samples, ranks)
        return (size + 1,) * larger + (size,) * (ranks - larger)


@dataclass(frozen=True, slots=True)
class OpCost:
    """What one op costs on either side.

    Its gradient, complete when its backward ends, takes as long as one of `ring_bytes` in a ring allreduce, and the
    optimiser changes `updated_bytes`; of dense gradients both are the parameters' bytes. `fc_late_s` of FC's backward
    come after the gradients of what FC takes.
    """

    name: str
    trains: bool
    conv_forward_s: float
    conv_backward_s: float
    conv_ring_bytes: float
    conv_updated_bytes: float
    fc_forward_s: float
    fc_backward_s: float
    fc_late_s: float
    fc_ring_bytes: float
    fc_updated_bytes: float


@dataclass(frozen=True, slots=True)
class Costs:
    """All that one allocation costs for every cut: what `price_cut` sums and the solver's coefficients.

    `parts` are each CONV rank's samples, `fc_samples` the busiest host's, `ops` in program order. A tensor crosses
    every link of `links` at once; `traffic` counts all of them. The `ties` that a cut parts are reduced over
    `all_ring`, the ranks of both roles.
    """

    allocation: Allocation
    parts: tuple[int, ...]
    fc_samples: int
    halves_gradients: bool
    ops: tuple[OpCost, ...]
    tensors: tuple[Tensor, ...]
    target_bytes: int
    optimizer_s_per_byte: float
    traffic: Link
    links: tuple[Link, ...]
    latency_s: float
    conv_ring: Channel
    fc_ring: Channel
    ties: tuple[Tie, ...]
    all_ring: Channel

    @property
    def samples(self) -> int:
        return sum(self.parts)

    def up_s(self, link: Link, tensor: Tensor, *, to_all: bool = False) -> float:
        return link.payload_bytes(tensor.value, to_all=to_all) * link.s_per_byte

    def down_s(self, link: Link, tensor: Tensor) -> float:
        return self.up_s(link, tensor) if tensor.value.requires_grad else 0.0


def separate(
    graph: OpGraph,
    fc_ops: frozenset[str],
    allocation: Allocation,
    cluster: Cluster,
    batch: Batch,
    codecs: Codecs = PLAIN,
) -> Prediction:
    """Layer separation (Stanza, arXiv 1812.10624) with `fc_ops` on the hosts, dedicated or colocated."""
    return price_cut(separate_costs(graph, allocation, cluster, batch, codecs), fc_ops)


def data_parallel(
    graph: OpGraph, world_size: int, cluster: Cluster, batch: Batch, codecs: Codecs = PLAIN
) -> Prediction:
    """Every rank trains the whole model; one ring sums all gradients, overlapped with the backward."""
    return data_parallel_on(graph, world_size, cluster, batch, codecs)(cluster)


def data_parallel_on(
    graph: OpGraph, world_size: int, cluster: Cluster, batch: Batch, codecs: Codecs = PLAIN
) -> Callable[[Cluster], Prediction]:
    """`data_parallel` on any network with the devices of `cluster`."""
    parts = batch.parts(world_size)
    samples = max(parts)
    compute, every = _whole_model(graph, cluster.device, samples)
    halved = codecs.halves_gradients
    steps = [(backward, gradient.ring_bytes(world_size, samples, halved=halved)) for backward, gradient in every]
    ring_bytes = sum(ready for _, ready in steps)
    updated_bytes = sum(gradient.updated_bytes(world_size, samples) for _, gradient in every)

    def on(network: Cluster) -> Prediction:
        terms, channel = dict(compute), ring(range(world_size), network)
        if ring_bytes:
            terms["conv_allreduce_exposed_s"] = channel.latency_s + exposed_s(steps, channel.s_per_byte)
        terms["optimizer_s"] = updated_bytes * _optimizer_s_per_byte(cluster)
        allocation = Allocation(world_size, 0, "data-parallel")
        return Prediction(allocation, sum(parts), 2.0 * (world_size - 1) * ring_bytes, terms)

    return on


def parameter_server_1(graph: OpGraph, world_size: int, cluster: Cluster, batch: Batch) -> Prediction | None:
    """World size - 1 workers push gradients to one server, then pull parameters; None for one rank."""
    if world_size < 2:
        return None
    allocation = Allocation(world_size - 1, 1, "parameter-server-1")
    return _parameter_server(graph, allocation, one_server(world_size, cluster), cluster, batch)


def parameter_server_n(graph: OpGraph, world_size: int, cluster: Cluster, batch: Batch) -> Prediction | None:
    """Every rank is a worker as well as the server of an equal shard; None for one rank."""
    if world_size < 2:
        return None
    allocation = Allocation(world_size, world_size, "parameter-server-n")
    return _parameter_server(graph, allocation, sharded_servers(world_size, cluster), cluster, batch)


def separate_costs(
    graph: OpGraph, allocation: Allocation, cluster: Cluster, batch: Batch, codecs: Codecs = PLAIN
) -> Costs:
    """What every op and tensor costs when `allocation` trains the model separately."""
    return costs_on(graph, cluster, batch, codecs)(allocation)


def costs_on(graph: OpGraph, cluster: Cluster, batch: Batch, codecs: Codecs = PLAIN) -> Callable[[Allocation], Costs]:
    """`separate_costs` of any allocation; what allocations have in common is computed once."""
    ops = [op for op in graph.ops if not op.is_size]
    goes_backward, crossing = needs_backward(graph), codecs.tensors(tensors(graph))
    known = gradients(graph)
    complete = [known.get(op.name, Gradient()) for op in ops]
    late = [late_share(graph, op) for op in ops]
    shared = ties(graph)

    @cache
    def seconds(samples: int) -> list[tuple[float, float]]:
        return [
            (
                forward_s(graph, op, cluster.device, samples),
                backward_s(graph, op, cluster.device, samples) if op.name in goes_backward else 0.0,
            )
            for op in ops
        ]

    @cache
    def sent(ranks: int, samples: int) -> list[tuple[float, float]]:
        halved = codecs.halves_gradients
        return [
            (each.ring_bytes(ranks, samples, halved=halved), each.updated_bytes(ranks, samples)) for each in complete
        ]

    @cache
    def op_costs(
        conv_workers: int, conv_samples: int, fc_workers: int, fc_samples: int, leaves_late: bool
    ) -> tuple[OpCost, ...]:
        sides = (
            seconds(conv_samples),
            sent(conv_workers, conv_samples),
            seconds(fc_samples),
            sent(fc_workers, fc_samples),
        )
        return tuple(
            OpCost(
                name=op.name,
                trains=not gradient.is_empty,
                conv_forward_s=conv_s[0],
                conv_backward_s=conv_s[1],
                conv_ring_bytes=conv_bytes[0],
                conv_updated_bytes=conv_bytes[1],
                fc_forward_s=fc_s[0],
                fc_backward_s=fc_s[1],
                fc_late_s=leaves_late * share * fc_s[1],
                fc_ring_bytes=fc_bytes[0],
                fc_updated_bytes=fc_bytes[1],
            )
            for op, gradient, share, conv_s, conv_bytes, fc_s, fc_bytes in zip(ops, complete, late, *sides, strict=True)
        )

    def costs(allocation: Allocation) -> Costs:
        parts = batch.parts(allocation.conv_workers)
        fc_samples = max(sum(parts[rank] for rank in block) for block in blocks(allocation))
        return Costs(
            allocation=allocation,
            parts=parts,
            fc_samples=fc_samples,
            halves_gradients=codecs.halves_gradients,
            ops=op_costs(
                allocation.conv_workers,
                max(parts),
                allocation.fc_workers,
                fc_samples,
                # Where other hosts wait for its gradients a CONV rank computes them before its own backward.
                allocation.placement == "dedicated" or allocation.fc_workers == 1,
            ),
            tensors=crossing,
            target_bytes=graph.target_bytes,
            optimizer_s_per_byte=_optimizer_s_per_byte(cluster),
            traffic=all_traffic(allocation, parts),
            links=host_links(allocation, parts, cluster),
            latency_s=cluster.latency_s,
            conv_ring=ring(range(allocation.conv_workers), cluster),
            fc_ring=ring(host_ranks(allocation), cluster),
            ties=shared,
            all_ring=ring(range(allocation.world_size), cluster),
        )

    return costs


def with_network(costs: Costs, cluster: Cluster) -> Costs:
    """The same devices on the network of `cluster`."""
    allocation = costs.allocation
    return replace(
        costs,
        links=host_links(allocation, costs.parts, cluster),
        latency_s=cluster.latency_s,
        conv_ring=ring(range(allocation.conv_workers), cluster),
        fc_ring=ring(host_ranks(allocation), cluster),
        all_ring=ring(range(allocation.world_size), cluster),
    )


def price_cut(costs: Costs, fc_ops: frozenset[str], front: frozenset[str] = frozenset()) -> Prediction:
    """One step with `fc_ops` on the hosts, those of `front` before CONV, the others behind it.

    Bytes are what all nodes send, traffic inside a node included. Once its input gradients have left, a dedicated
    host computes the late ones, reduces and updates FC while CONV goes backward, reduces and updates: `fc_exposed_s` is
    by how much the host ends later, its optimiser included. A colocated host's link carries the FC ring first, then the
    CONV ring as gradients appear, and a single one computes its late gradients meanwhile: `fc_exposed_s` is what
    both add, and its device runs both optimisers. With FC ops in front the FC ring waits for their backward, which
    waits for CONV's: nothing hides it but CONV's optimiser. The gradient of a parameter that both roles hold is summed
    over all ranks once both have their own, which then update.
    """
    back = fc_ops - front
    shared, conv_samples = parted(costs.ties, fc_ops), max(costs.parts)
    ranks = costs.allocation.world_size
    shared_s, shared_bytes = reduction(shared, ranks, conv_samples, costs.all_ring)
    shared_optimizer_s = costs.optimizer_s_per_byte * sum(
        tie.gradient.updated_bytes(ranks, conv_samples) for tie in shared
    )
    apart = _apart(costs, shared, fc_ops)
    terms = dict.fromkeys(TERMS, 0.0)
    steps: list[tuple[float, float]] = []
    conv_bytes = fc_bytes = conv_optimizer_s = fc_optimizer_s = late_s = 0.0
    for op in costs.ops:
        ring_bytes, updated_bytes = apart.get(op.name, (0.0, 0.0))
        if op.name in fc_ops:
            terms["fc_forward_s"] += op.fc_forward_s
            op_late_s = op.fc_late_s if op.name in back else 0.0
            terms["fc_backward_s"] += op.fc_backward_s - op_late_s
            late_s += op_late_s
            fc_bytes += op.fc_ring_bytes - ring_bytes
            fc_optimizer_s += (op.fc_updated_bytes - updated_bytes) * costs.optimizer_s_per_byte
        else:
            terms["conv_forward_s"] += op.conv_forward_s
            terms["conv_backward_s"] += op.conv_backward_s
            conv_bytes += op.conv_ring_bytes - ring_bytes
            conv_optimizer_s += (op.conv_updated_bytes - updated_bytes) * costs.optimizer_s_per_byte
            steps.append((op.conv_backward_s, op.conv_ring_bytes - ring_bytes))
    asked = [tensor for tensor in costs.tensors if tensor.goes_to_front(front)]
    given = [tensor for tensor in costs.tensors if tensor.comes_down(front, back)]
    crossing = [tensor for tensor in costs.tensors if tensor.goes_up(front, back)]
    ups = [
        _message(costs, asked),
        _message(costs, crossing, costs.target_bytes if back else 0),
        _message(costs, _with_gradient(given), to_all=True),
    ]
    downs = [_message(costs, given, to_all=True), _message(costs, _with_gradient(crossing))]
    terms["up_s"], terms["down_s"] = (sum(seconds for seconds, _ in messages) for messages in (ups, downs))
    fc_ring_s = costs.fc_ring.latency_s + fc_bytes * costs.fc_ring.s_per_byte if fc_bytes else 0.0
    conv_latency_s = costs.conv_ring.latency_s if conv_bytes else 0.0
    conv_exposed_s = exposed_s(steps, costs.conv_ring.s_per_byte)
    conv_optimizer_s, fc_optimizer_s = conv_optimizer_s + shared_optimizer_s, fc_optimizer_s + shared_optimizer_s
    terms["conv_allreduce_exposed_s"] = conv_latency_s + conv_exposed_s + shared_s
    if costs.allocation.placement == "dedicated":
        meanwhile_s = terms["conv_backward_s"] + conv_latency_s + conv_exposed_s
        waited_s, rest_s = 0.0, late_s + fc_ring_s
        if front:
            waited_s, rest_s, meanwhile_s = max(0.0, late_s - meanwhile_s), fc_ring_s, 0.0
        if shared:
            waited_s += max(0.0, rest_s - meanwhile_s) + max(0.0, fc_optimizer_s - conv_optimizer_s)
        else:
            waited_s += max(0.0, rest_s + fc_optimizer_s - meanwhile_s - conv_optimizer_s)
        terms["fc_exposed_s"] = waited_s
        terms["optimizer_s"] = conv_optimizer_s
    else:
        beside_s = exposed_s(steps, costs.conv_ring.s_per_byte, backlog_s=0.0 if front else fc_ring_s) - conv_exposed_s
        terms["fc_exposed_s"] = beside_s + max(0.0, late_s - conv_latency_s - conv_exposed_s - beside_s)
        terms["fc_exposed_s"] += fc_ring_s if front else 0.0
        terms["optimizer_s"] = conv_optimizer_s + fc_optimizer_s
    allocation = costs.allocation
    sent = 2 * (allocation.conv_workers - 1) * conv_bytes + 2 * (allocation.fc_workers - 1) * fc_bytes
    sent += 2 * (ranks - 1) * shared_bytes
    return Prediction(allocation, costs.samples, sent + sum(size for _, size in (*ups, *downs)), terms)


def _apart(costs: Costs, shared: Iterable[Tie], fc_ops: frozenset[str]) -> dict[str, tuple[float, float]]:
    """(Ring bytes, updated bytes) of parted gradients, by the op that they would be complete after in its own role."""
    found: dict[str, tuple[float, float]] = {}
    for tie in shared:
        op, gradient = tie.users[0], tie.gradient
        if op in fc_ops:
            ranks, samples = costs.allocation.fc_workers, costs.fc_samples
        else:
            ranks, samples = costs.allocation.conv_workers, max(costs.parts)
        ring_bytes, updated_bytes = found.get(op, (0.0, 0.0))
        found[op] = (
            ring_bytes + gradient.ring_bytes(ranks, samples, halved=costs.halves_gradients),
            updated_bytes + gradient.updated_bytes(ranks, samples),
        )
    return found


def exposed_s(steps: Iterable[tuple[float, float]], s_per_byte: float, backlog_s: float = 0.0) -> float:
    """Seconds that sending gradients goes on after a backward that it overlaps.

    `steps` are (backward seconds, gradient bytes) in program order; the backward takes them from the last to
    the first. The link drains its backlog while an op computes, then the op's gradient joins it (Lindley's
    recursion). It equals the maximum over positions of bytes still to send less compute still to come.

    >>> exposed_s([(1.0, 0), (1.0, 3)], s_per_byte=1.0)
    2.0
    """
    for compute_s, ready in reversed(list(steps)):
        backlog_s = max(0.0, backlog_s - compute_s) + ready * s_per_byte
    return backlog_s


def _message(
    costs: Costs, crossing: list[Tensor], target_bytes: int = 0, *, to_all: bool = False
) -> tuple[float, float]:
    """Seconds and bytes of tensors, and of targets, between the CONV ranks and their hosts, one way or the other.

    Of a replicated tensor a host gets one copy; what it makes itself it sends `to_all`, and gets as many gradients.
    """
    payload_bytes = sum(costs.traffic.payload_bytes(tensor.value, to_all=to_all) for tensor in crossing)
    payload_bytes += costs.traffic.samples * target_bytes
    if not payload_bytes:
        return 0.0, 0.0
    loads_s = (
        sum(costs.up_s(link, tensor, to_all=to_all) for tensor in crossing)
        + link.samples * target_bytes * link.s_per_byte
        for link in costs.links
    )
    return costs.latency_s + max(loads_s), payload_bytes


def _with_gradient(crossing: list[Tensor]) -> list[Tensor]:
    return [tensor for tensor in crossing if tensor.value.requires_grad]


def _whole_model(graph: OpGraph, device: Device, samples: int) -> tuple[dict[str, float], list[tuple[float, Gradient]]]:
    """Compute terms of a rank that trains the whole model, and each op's (backward seconds, gradient)."""
    ops = [op for op in graph.ops if not op.is_size]
    goes_backward, known = needs_backward(graph), gradients(graph)
    steps = [
        (backward_s(graph, op, device, samples) if op.name in goes_backward else 0.0, known.get(op.name, Gradient()))
        for op in ops
    ]
    terms = dict.fromkeys(TERMS, 0.0)
    terms["conv_forward_s"] = sum(forward_s(graph, op, device, samples) for op in ops)
    terms["conv_backward_s"] = sum(compute_s for compute_s, _ in steps)
    return terms, steps


def _parameter_server(
    graph: OpGraph, allocation: Allocation, channel: Channel, cluster: Cluster, batch: Batch
) -> Prediction:
    """Push overlapped with the backward, its exposed part in up_s; update; pull in down_s, not overlapped.

    Of a sparse table a worker pushes and pulls the rows that it looks up.
    """
    parts = batch.parts(allocation.conv_workers)
    samples = max(parts)
    terms, every = _whole_model(graph, cluster.device, samples)
    steps = [(backward, gradient.rows_bytes(samples)) for backward, gradient in every]
    model_bytes = sum(ready for _, ready in steps)
    updated_bytes = sum(gradient.updated_bytes(allocation.conv_workers, samples) for _, gradient in every)
    if model_bytes:
        terms["up_s"] = channel.latency_s + exposed_s(steps, channel.s_per_byte)
        terms["down_s"] = channel.latency_s + model_bytes * channel.s_per_byte
        terms["optimizer_s"] = updated_bytes / allocation.fc_workers * _optimizer_s_per_byte(cluster)
    # With one server W - 1 workers send all; with W shards each of W ranks keeps its own, a W-th.
    return Prediction(allocation, sum(parts), 2.0 * (allocation.world_size - 1) * model_bytes, terms)


def _optimizer_s_per_byte(cluster: Cluster) -> float:
    return OPTIMIZER_PASSES / cluster.device.memory_bytes_per_s
