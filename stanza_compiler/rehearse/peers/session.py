"""What every peer has in common: the program's model, data and loss, and the loop that is timed."""

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Peer(Protocol):
    """One rank's part in another way to train."""

    def step(self, items: Sequence[int]) -> None:
        """Train on one global batch."""

    def state(self) -> dict[str, Tensor] | None:
        """The trained parameters under the model's names on rank 0, None elsewhere; every rank has to call it."""


class Whole(nn.Module):
    """The uncut model, called with its named inputs."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: dict[str, Tensor]) -> Any:
        return self.model.run(inputs)


@dataclass(slots=True)
class Session:
    """One rank among the others; `workers` of them train on parts of a batch, rank 0 and those that follow it.

    `trained` names the parameters of `whole` that a backward reaches. `worker_group` is all workers'.
    """

    program: Any
    rank: int
    size: int
    workers: int
    device: torch.device
    source: Any
    whole: Whole
    worker_group: Any
    first_items: Sequence[int]
    trained: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    def runtime(self, module: str) -> Any:
        """A module of the program's own runtime."""
        return import_module(f"runtime.{module}")

    @property
    def is_worker(self) -> bool:
        return self.rank < self.workers

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """Those that a backward reaches, under the model's own names and in its order."""
        return {
            name.removeprefix("model."): parameter
            for name, parameter in self.whole.named_parameters()
            if name in self.trained
        }

    def backward(self, items: Sequence[int], module: nn.Module, *, scale: float = 1.0) -> None:
        """Add to the gradients `scale` times this rank's share of the mean loss of `items`.

        A rank without a part runs on a stand-in that weighs nothing: others may wait for it.
        """
        own = self._own(items)
        with ExitStack() as standin:
            if not own:
                standin.enter_context(self.runtime("standin").unchanged_buffers(self.whole))
            batch = self.source.load(own or items[:2])
            with self._watch("conv_forward_s"):
                outputs = module(batch.inputs)
                loss = self.runtime("loss").measure(self.program.hooks, outputs, batch.targets, samples=batch.samples)
            count = self._count(loss, items, own)
            with self._watch("conv_backward_s"):
                weight = scale / count if own and count else 0.0
                torch.autograd.backward(loss.total, torch.full_like(loss.total, weight))

    def updater(self, module: Any) -> Any:
        """The user's optimiser and schedule on what `module.named_parameters()` gives."""
        return self.runtime("optimizer").make_updater(self.program.hooks, module)

    def update(self, updater: Any) -> None:
        with self._watch("optimizer_s"):
            updater.step()

    def find_trained(self) -> None:
        """See on the first few items which parameters get gradients; nothing is learnt from them."""
        standin = self.runtime("standin")
        with standin.unchanged_buffers(self.whole):
            batch = self.source.load(self.first_items[: standin.ITEMS])
            outputs = self.whole(batch.inputs)
            loss = self.runtime("loss").measure(self.program.hooks, outputs, batch.targets, samples=batch.samples)
            self.trained = standin.find_trained(self.whole, [loss.total])

    def _own(self, items: Sequence[int]) -> tuple[int, ...]:
        parts: Any = self.runtime("sampler").split_items(tuple(items), self.workers)
        own: tuple[int, ...] = parts[self.rank]
        return own

    def _count(self, loss: Any, items: Sequence[int], own: Sequence[int]) -> float:
        """What the sums of all parts are divided by."""
        if not loss.counted:
            return float(len(items))
        total = torch.tensor([loss.count if own else 0.0], dtype=torch.float64)
        dist.all_reduce(total, group=self.worker_group)
        return float(total)

    def _watch(self, phase: str) -> Any:
        watch = self.runtime("stopwatch").Stopwatch()
        watch.seconds = self.seconds
        return watch(phase)


def run(make: Callable[[Session], Peer], *, servers: int = 0, argv: Sequence[str] | None = None) -> None:
    """Train as one rank of a peer; the last `servers` ranks read no data."""
    arguments = _parse(argv)
    sys.path.insert(0, str(arguments.out.resolve()))
    program = import_module("train").PROGRAM
    groups = import_module("runtime.groups")
    world = groups.World.from_environment()
    backend = groups.choose_backend(None, world)
    device = groups.choose_device(backend, world)
    dist.init_process_group(
        backend, rank=world.rank, world_size=world.size, timeout=timedelta(seconds=arguments.timeout_s)
    )
    try:
        _take_part(make, program, device, servers, arguments)
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        sys.stderr.write(f"{traceback.format_exc()}error: rank {world.rank}: {what}\n")
        sys.stderr.flush()
        os._exit(1)  # threads that wait for other ranks hold nobody up
    dist.destroy_process_group()


def _take_part(
    make: Callable[[Session], Peer], program: Any, device: torch.device, servers: int, arguments: argparse.Namespace
) -> None:
    dataset = None
    if program.hooks.make_dataset is not None:
        import_module("runtime.seeds").seed_everything(arguments.seed)
        dataset = program.hooks.make_dataset()
    source = import_module("runtime.batches").make_source(program, dataset, arguments.seed, device)
    order = import_module("runtime.sampler").Order(
        source.length, arguments.global_batch_size, arguments.seed, arguments.shuffle
    )
    whole = Whole(program.build_model().to(device).train())
    rank, size = dist.get_rank(), dist.get_world_size()
    workers = size - servers
    group = dist.new_group(list(range(workers))) if servers else dist.group.WORLD
    session = Session(program, rank, size, workers, device, source, whole, group, order.items(1))
    session.find_trained()
    peer = make(session)
    _train(session, peer, order, arguments)
    if arguments.export is not None:
        state = peer.state()
        if state is not None:
            torch.save(state, arguments.export)
    dist.barrier()  # no rank leaves while another still waits for a message


def _train(session: Session, peer: Peer, order: Any, arguments: argparse.Namespace) -> None:
    """Every step, and a line of metrics as it ends on rank 0."""
    seed_from = session.runtime("seeds").seed_from
    with ExitStack() as files:
        metrics = None
        if arguments.metrics is not None and session.rank == 0:
            metrics = files.enter_context(arguments.metrics.open("w", encoding="utf-8"))
        start = time.perf_counter()
        for number in range(1, arguments.steps + 1):
            items = order.items(number)
            torch.manual_seed(seed_from(arguments.seed, session.rank, number))
            session.seconds = {}
            peer.step(items)
            end = time.perf_counter()
            if metrics is not None:
                line = {"step": number, "samples": len(items), "samples_per_s": len(items) / (end - start)}
                metrics.write(json.dumps({**line, "times": session.seconds}) + "\n")
                metrics.flush()
            start = end


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--global-batch-size", type=int, required=True)
    parser.add_argument("--metrics", type=Path)
    parser.add_argument("--export", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-shuffle", dest="shuffle", action="store_false")
    parser.add_argument("--timeout", dest="timeout_s", type=float, default=300.0)
    return parser.parse_args(argv)
