"""Which rank sends what to which other one in a step, and how long the busiest link takes for it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from typing import Any

from stanza_compiler.network import blocks, host_ranks
from stanza_compiler.plan import Allocation

DTYPE_BYTES = {"float64": 8, "int64": 8, "complex64": 8, "int32": 4, "int16": 2, "float16": 2, "bfloat16": 2, "int8": 1}
DTYPE_BYTES |= {"float32": 4, "uint8": 1, "bool": 1, "complex128": 16}


@dataclass(frozen=True, slots=True)
class Edge:
    """`size` bytes from one rank to another."""

    source: int
    to: int
    size: float

    def back(self) -> "Edge":
        return Edge(self.to, self.source, self.size)


@dataclass(frozen=True, slots=True)
class Message:
    """What travels at one time: between CONV ranks and hosts `way` is "up" or "down", else the term it belongs to."""

    way: str
    edges: tuple[Edge, ...]


def messages(
    plan: Mapping[str, Any], allocation: Allocation, parts: Sequence[int], target_bytes: float
) -> tuple[Message, ...]:
    """All of a step: what each segment takes, then its gradients; `target_bytes` a sample go with the last one's."""
    roles = _roles(plan)
    crossing: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for tensor in plan["boundary"]:
        crossing[tensor["to_segment"]].append(tensor)
    found = []
    for segment, role in enumerate(roles):
        there, back = ("up", "down") if role == "fc" else ("down", "up")
        tensors = crossing.get(segment, [])
        given = [edge for tensor in tensors for edge in _edges(tensor, there, allocation, parts)]
        returned = [
            edge.back()
            for tensor in tensors
            if tensor["requires_grad"]
            for edge in _edges(tensor, there, allocation, parts)
        ]
        if role == "fc" and segment == len(roles) - 1:
            given += _batched(target_bytes, there, allocation, parts)
        found += [Message(there, tuple(given)), Message(back, tuple(returned))]
    return tuple(message for message in found if message.edges)


def crossing_bytes(edges: Iterable[Edge], hosts: int, ranks_per_host: int) -> tuple[list[float], list[float]]:
    """Bytes that leave and that reach each host; what stays inside one crosses no link."""
    sent, received = [0.0] * hosts, [0.0] * hosts
    for edge in edges:
        source, to = edge.source // ranks_per_host, edge.to // ranks_per_host
        if source != to:
            sent[source] += edge.size
            received[to] += edge.size
    return sent, received


def ring_edges(ranks: Sequence[int], size: float) -> list[Edge]:
    """An allreduce of `size` bytes over a ring: 2(n-1)/n of them from each rank to the next."""
    each = 2 * (len(ranks) - 1) / len(ranks) * size
    return [Edge(rank, following, each) for rank, following in zip(ranks, [*ranks[1:], ranks[0]], strict=True)]


def exchange(allocation: Allocation, size: float) -> tuple[Message, Message]:
    """What sharded hosts tell each other between layers, `size` bytes together: as much forward as backward."""
    hosts = host_ranks(allocation)
    pairs = [(host, other) for host in hosts for other in hosts if other != host]
    edges = tuple(Edge(host, other, size / 2 / len(pairs)) for host, other in pairs)
    return Message("fc_forward", edges), Message("fc_backward", edges)


def _roles(plan: Mapping[str, Any]) -> list[str]:
    """The role of every segment: the stages take turns."""
    turns = zip_longest(*([stage["role"]] * len(stage["segments"]) for stage in plan["stages"]))
    return [role for turn in turns for role in turn if role is not None]


def _served(allocation: Allocation) -> Iterator[tuple[range, int]]:
    """The CONV ranks that each host hears: its block, of sharded hosts all."""
    everyone = range(allocation.conv_workers)
    for block, host in zip(blocks(allocation), host_ranks(allocation), strict=True):
        yield (everyone if allocation.placement == "sharded" else block), host


def _edges(tensor: Mapping[str, Any], way: str, allocation: Allocation, parts: Sequence[int]) -> list[Edge]:
    if tensor["kind"] == "batched":
        return _batched(tensor["bytes_per_sample"], way, allocation, parts)
    size = prod(tensor["shape"]) * DTYPE_BYTES[tensor["dtype"]]
    edges = []
    for block, host in _served(allocation):
        # Of what is equal on all ranks a host gets one copy, and gives each its own.
        ranks = block[:1] if tensor["kind"] == "replicated" and way == "up" else block
        edges += [_edge(rank, host, way, size) for rank in ranks if rank != host]
    return edges


def _batched(bytes_per_sample: float, way: str, allocation: Allocation, parts: Sequence[int]) -> list[Edge]:
    return [
        _edge(rank, host, way, parts[rank] * bytes_per_sample)
        for block, host in _served(allocation)
        for rank in block
        if rank != host
    ]


def _edge(rank: int, host: int, way: str, size: float) -> Edge:
    return Edge(rank, host, size) if way == "up" else Edge(host, rank, size)
