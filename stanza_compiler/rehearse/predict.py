"""What a step of a program should take on the rehearsed links, from its plan and from what its ranks compute."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stanza_compiler.cluster import Cluster
from stanza_compiler.network import host_ranks, ring
from stanza_compiler.plan import Allocation
from stanza_compiler.rehearse.summary import Summary
from stanza_compiler.rehearse.timeline import Event, waits
from stanza_compiler.rehearse.traffic import Edge, crossing_bytes, exchange, messages, ring_edges

# A full frame on the wire is 1,514 bytes long and carries 1,448 of TCP's payload.
FRAME_PAYLOAD = 0.957


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds by term, as the program's metrics name them, and of the whole step; payload bytes of each host."""

    terms: dict[str, float]
    step_s: float
    sent_bytes: tuple[float, ...]
    received_bytes: tuple[float, ...]


def predict(
    plan: Mapping[str, Any],
    allocation: Allocation,
    cluster: Cluster,
    parts: Sequence[int],
    *,
    alone: Summary,
    events: Sequence[Sequence[Sequence[Event]]],
) -> Prediction:
    """One step with `parts` samples on the CONV ranks: compute as measured `alone`, plus what the links take.

    `events` are each rank's, by step, of the run whose sums were answered on the spot. Payload gets FRAME_PAYLOAD of a
    link's rate. A message takes what it takes on the busiest link; of a sum counts what the rank would wait for it.
    """
    network = Cluster(
        cluster.nodes, cluster.gpus_per_node, FRAME_PAYLOAD * cluster.bandwidth_bit_per_s, cluster.latency_s
    )
    conv_ranks = tuple(range(allocation.conv_workers))
    rings = _rings(events)
    ring_bytes = sum(2 * (len(ranks) - 1) * size for ranks, size in rings.items())
    travelling = messages(plan, allocation, parts, 0.0)
    if travelling:
        # The plan doesn't say how large a target is, nor what sharded hosts exchange; the program counts what it sends.
        boundary_bytes = sum(edge.size for message in travelling for edge in message.edges)
        further_bytes = max(0.0, alone.payload_bytes - ring_bytes - boundary_bytes)
        hosts = host_ranks(allocation)
        if allocation.placement == "sharded" and len(hosts) > 1:
            travelling += exchange(allocation, further_bytes)
        else:
            remote = sum(samples for rank, samples in enumerate(parts) if rank not in hosts)
            travelling = messages(plan, allocation, parts, further_bytes / max(remote, 1))
    terms = dict(alone.terms)
    for way in ("up", "down"):
        seconds = [_message_s(message.edges, network) for message in travelling if message.way == way]
        if seconds:
            terms[f"{way}_s"] = sum(seconds)
    for message in travelling:
        if message.way not in ("up", "down"):
            terms[f"{message.way}_s"] = terms.get(f"{message.way}_s", 0.0) + _message_s(message.edges, network)
    waited = _waited(events, network)
    conv_s = max((each.get(conv_ranks, 0.0) for each in waited), default=0.0)
    others_s = max(sum(s for ranks, s in each.items() if ranks != conv_ranks) for each in waited)
    own_term = "conv_allreduce_exposed_s" if "conv_allreduce_exposed_s" in terms else "conv_backward_s"
    terms[own_term] = terms.get(own_term, 0.0) + conv_s
    if others_s:
        terms["fc_exposed_s"] = terms.get("fc_exposed_s", 0.0) + others_s
    waiting_s = max(sum(each.values()) for each in waited)
    if allocation.placement == "dedicated":
        # The hosts sum while the CONV ranks go backward, sum and update.
        beside_s = terms.get("conv_backward_s", 0.0) + terms.get("optimizer_s", 0.0)
        waiting_s = conv_s + max(0.0, others_s - beside_s)
    step_s = alone.step_s.median + waiting_s
    step_s += sum(_message_s(message.edges, network) for message in travelling)
    edges = [edge for message in travelling for edge in message.edges]
    edges += [edge for ranks, size in rings.items() for edge in ring_edges(ranks, size)]
    sent, received = crossing_bytes(edges, cluster.nodes, cluster.gpus_per_node)
    return Prediction(terms, step_s, tuple(sent), tuple(received))


def _rings(events: Sequence[Sequence[Sequence[Event]]]) -> dict[tuple[int, ...], float]:
    """Bytes that are summed in a step over each group of ranks, as its first rank starts them."""
    found: dict[tuple[int, ...], float] = {}
    for rank, steps in enumerate(events):
        for event in steps[-1]:
            if event.kind == "sum" and event.ranks[0] == rank:
                found[event.ranks] = found.get(event.ranks, 0.0) + event.size
    return found


def _waited(events: Sequence[Sequence[Sequence[Event]]], network: Cluster) -> list[dict[tuple[int, ...], float]]:
    """By rank: the median over steps of its waiting for each group's sums."""

    def ring_s(size: int, ranks: tuple[int, ...]) -> float:
        channel = ring(ranks, network)
        return channel.latency_s + size * channel.s_per_byte

    found = []
    for steps in events:
        each = [waits(step, ring_s) for step in steps]
        groups = {ranks for step in each for ranks in step}
        found.append({ranks: statistics.median(step.get(ranks, 0.0) for step in each) for ranks in groups})
    return found


def _message_s(edges: Sequence[Edge], network: Cluster) -> float:
    """The latency, and the bytes of the busiest link in its busier direction."""
    sent, received = crossing_bytes(edges, network.nodes, network.gpus_per_node)
    return network.latency_s + max(*sent, *received) * 8 / network.bandwidth_bit_per_s
