"""The process groups of a run."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from .layout import Layout
from .program import Program
from .routes import find_routes
from .transfer import waiting_for


@dataclass(frozen=True, slots=True)
class World:
    """This process among the others, as torchrun says it in the environment."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    @classmethod
    def from_environment(cls) -> "World":
        size = int(os.environ.get("WORLD_SIZE", "1"))
        rank = int(os.environ.get("RANK", "0"))
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", str(size)))
        return cls(rank, size, int(os.environ.get("LOCAL_RANK", str(rank))), local_size)


@dataclass(frozen=True, slots=True)
class Channel:
    """What the message of micro-batch `micro` into segment `number` travels on.

    Headers, tensors `there`, their gradients `back`; tags keep the micro-batches of a step apart.
    """

    number: int
    headers: dist.ProcessGroup
    there: dist.ProcessGroup
    back: dist.ProcessGroup
    micro: int = 0

    @property
    def header_tag(self) -> int:
        return self.tag(self.number)

    def tag(self, wire: int) -> int:
        """Of the tensor at place `wire` of the message, and of its gradient."""
        return self.micro << 16 | wire


@dataclass(frozen=True, slots=True)
class Groups:
    """One communicator per purpose, so that no two kinds of messages can mix.

    `meta` (gloo, everyone): agreement, headers, weights at the end. `report` (gloo, everyone): metrics. `channels`:
    boundary tensors and their gradients, by the number of the segment that takes them. `conv`, `hosts`: the
    gradients of each role. `shared` (everyone): those of parameters that both roles hold. `counts` (gloo): loss
    counts, among the ranks that compute the loss. `forms` (gloo): what hosts ask each other once. None where a role
    has one rank, or nothing is shared.
    """

    meta: dist.ProcessGroup
    report: dist.ProcessGroup
    channels: Mapping[int, Channel]
    conv: dist.ProcessGroup | None
    hosts: dist.ProcessGroup | None
    shared: dist.ProcessGroup | None
    counts: dist.ProcessGroup | None
    forms: dist.ProcessGroup | None


def choose_backend(asked: str | None, world: World) -> str:
    """`asked`, else nccl when every local rank has a GPU of its own, else gloo."""
    if asked is not None:
        return asked
    return "nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= world.local_size else "gloo"


def choose_device(backend: str, world: World) -> torch.device:
    """Where this rank computes."""
    if backend != "nccl":
        return torch.device("cpu")
    torch.cuda.set_device(world.local_rank)
    return torch.device("cuda", world.local_rank)


@contextmanager
def connect(layout: Layout, world: World, program: Program, backend: str, timeout_s: float) -> Iterator[Groups]:
    """Meet the other ranks; every wait on these groups, the meeting included, ends after `timeout_s` seconds."""
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", timeout=timeout, rank=world.rank, world_size=world.size)
    try:
        everyone = list(range(world.size))
        conv, hosts = list(range(layout.conv_workers)), list(layout.hosts)

        def group(ranks: list[int], kind: str) -> dist.ProcessGroup | None:
            if len(ranks) < 2:
                return None
            made = dist.new_group(ranks, timeout=timeout, backend=kind)
            if not isinstance(made, dist.ProcessGroup) or world.rank not in ranks:
                return None
            if kind == "nccl":
                dist.barrier(made)  # the first call on an nccl group has to be everyone's
            return made

        def channel(number: int, headers: dist.ProcessGroup) -> Channel:
            there, back = group(everyone, backend), group(everyone, backend)
            assert there is not None
            assert back is not None
            return Channel(number, headers, there, back)

        meta, report = dist.group.WORLD, group(everyone, "gloo")
        assert meta is not None
        assert report is not None
        segments = program.segments
        routes = find_routes(segments) if hosts else ()
        yield Groups(
            meta=meta,
            report=report,
            channels={route.number: channel(route.number, meta) for route in routes if route.receives},
            conv=group(conv, backend),
            hosts=group(hosts, backend),
            shared=group(everyone, backend) if program.shared else None,
            counts=group(hosts if segments[-1].role == "fc" else conv, "gloo"),
            forms=group(hosts, "gloo"),
        )
    finally:
        dist.destroy_process_group()


def sum_count(count: float, group: dist.ProcessGroup | None) -> float:
    """The sum of `count` over the ranks of `group`."""
    if group is None:
        return count
    total = torch.tensor([count], dtype=torch.float64)
    with waiting_for("counts of the ranks that compute the loss"):
        dist.all_reduce(total, group=group)
    return float(total)
