"""The training loop of a generated program."""

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from .agreement import broadcast_length
from .arguments import Arguments, choose_codecs, choose_layout, parse
from .batches import Batches, make_source
from .cores import available_cores
from .data_parallel import DataParallelTrainer
from .errors import UsageError
from .evaluate import evaluate
from .export import export
from .groups import Groups, World, choose_backend, choose_device, connect
from .layout import Layout
from .metrics import Reporter
from .plan_file import PlanFile, read_plan
from .program import Program
from .sampler import Order
from .seeds import seed_everything, seed_from
from .separated import SeparatedTrainer
from .sharded import ShardedTrainer
from .single import SingleProcessTrainer
from .trainer import Trainer
from .transfer import waiting_for
from .weights import load_stage

SYNTHETIC_STEPS = 10


def main(program: Program, argv: Sequence[str] | None = None) -> None:
    """Run train.py; exits with 2 when flags do not add up, with 1 when this rank fails."""
    world = World.from_environment()
    try:
        arguments = parse(argv)
        plan = read_plan(program.folder / "plan.json")
        layout = choose_layout(arguments, plan.layout, world.size, single_host=plan.single_host, sharding=plan.sharding)
        if plan.micro_batches > 1 and layout.placement == "sharded" and world.size > 1:
            what = f"the plan cuts a step into {plan.micro_batches} micro-batches, which sharded hosts don't take"
            raise UsageError("--placement", what, "pass colocated, or compile with --micro-batches 1")
        segments = program.segments
        if world.size > 1 and layout.fc_workers > layout.conv_workers and segments[0].role == "fc":
            what = f"{layout.fc_workers} hosts for {layout.conv_workers} CONV ranks, whose inputs FC takes first"
            raise UsageError("--fc-workers", what, "pass fewer")
        are_sharded = layout.placement == "sharded" and layout.fc_workers > 1 and world.size > 1
        if are_sharded and choose_backend(arguments.backend, world) == "nccl":
            what = "sharded hosts send and receive at once, which waits for itself on nccl"
            raise UsageError("--placement", what, "pass colocated, or --backend gloo to train on processors")
        if arguments.epochs is not None and program.hooks.make_dataset is None:
            raise UsageError("--epochs", "synthetic items have no end", "pass --steps, or define make_dataset")
    except UsageError as error:
        if world.rank == 0:
            print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    run = _Run(program, arguments, plan, layout, world)
    try:
        run.train()
    except Exception as error:
        # One write, so that the ranks' messages do not mix.
        what = " ".join(f"{type(error).__name__}: {error}".split())
        where = f"rank {world.rank} ({layout.describe(world.rank)}), step {run.number}"
        sys.stderr.write(f"{traceback.format_exc()}error: {where}: {what}\n")
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(1)  # a thread may still wait for what a peer will never send


class _Run:
    """One process's run from the first item to the exported file; `number` is the step it is at."""

    def __init__(self, program: Program, arguments: Arguments, plan: PlanFile, layout: Layout, world: World) -> None:
        self._program, self._arguments, self._plan = program, arguments, plan
        self._layout, self._world = layout, world
        self.number = 0

    def train(self) -> None:
        """Train, then write and evaluate the weights on rank 0."""
        backend = choose_backend(self._arguments.backend, self._world)
        device = choose_device(backend, self._world)
        if self._world.rank == 0 and self._world.size > 1 and self._layout != self._plan.layout:
            print(f"layout: {self._layout} (planned: {self._plan.layout})", flush=True)
        alone = self._world.size == 1
        meeting = (
            nullcontext()
            if alone
            else connect(self._layout, self._world, self._program, backend, self._arguments.timeout_s)
        )
        with meeting as groups:
            state = self._steps(groups, device)
        if state is not None:
            if self._arguments.export is not None:
                export(state, self._arguments.export)
            if self._program.hooks.make_eval_dataset is not None:
                dataset = self._program.hooks.make_eval_dataset()
                size = self._arguments.batch_size or self._plan.batch_size
                print(evaluate(self._program, dataset, state, batch_size=size), flush=True)

    @property
    def _wants_state(self) -> bool:
        """Whether somebody looks at the weights afterwards: rank 0 would need memory for all of them."""
        return self._arguments.export is not None or self._program.hooks.make_eval_dataset is not None

    def _steps(self, groups: Groups | None, device: torch.device) -> dict[str, Any] | None:
        arguments, rank = self._arguments, self._world.rank
        dataset = self._make_dataset()
        length = len(dataset) if dataset is not None else None
        if groups is not None:
            length = broadcast_length(length, groups.meta)
        if length == 0:
            raise ValueError("make_dataset() gave a dataset without items")
        size = arguments.global_batch_size or self._layout.conv_workers * (
            arguments.batch_size or self._plan.batch_size
        )
        order = Order(length, size, arguments.seed, arguments.shuffle)
        steps = self._count_steps(order)
        trainer = self._make_trainer(groups, dataset, order, device)
        report = groups.report if groups is not None else None
        reporter = Reporter(self._layout, rank=rank, group=report, metrics=arguments.metrics)
        trainer.start(order.items(1))
        for self.number in range(1, steps + 1):
            items = order.items(self.number)
            torch.manual_seed(seed_from(arguments.seed, rank, self.number))
            record = trainer.step(self.number, items, order.items(self.number + 1) if self.number < steps else ())
            reporter.step(self.number, record, len(items))
        reporter.close()
        state = trainer.state() if self._wants_state else None
        if groups is not None:
            with waiting_for("end of all ranks"):
                dist.barrier(groups.meta)  # no rank leaves while another still waits for a message
        return state

    def _make_dataset(self) -> Any:
        """The user's dataset on ranks that load items; seeded, so that a random one is the same everywhere."""
        make = self._program.hooks.make_dataset
        if make is None or not self._layout.is_conv(self._world.rank):
            return None
        seed_everything(self._arguments.seed)
        return make()

    def _count_steps(self, order: Order) -> int:
        if self._arguments.steps is not None:
            return self._arguments.steps
        if order.length is None:
            return SYNTHETIC_STEPS
        return order.steps_per_epoch * (self._arguments.epochs or 1)

    def _make_trainer(self, groups: Groups | None, dataset: Any, order: Order, device: torch.device) -> Trainer:
        program, rank = self._program, self._world.rank
        source = make_source(program, dataset, order.seed, device)
        batches = Batches(source, seed=order.seed, rank=rank)
        codecs = choose_codecs(self._arguments, self._plan.codecs)
        if groups is None:
            return SingleProcessTrainer(program, batches=batches, device=device)
        facts = {
            "length of the dataset": source.length if self._layout.is_conv(rank) else order.length,
            "global batch size": order.global_batch_size,
            "seed": order.seed,
            "shuffling": order.shuffle,
            "steps": self._count_steps(order),
            "layout": str(self._layout),
            "codecs": str(codecs),
            "micro-batches": self._plan.micro_batches,
            "use of the weights at the end": self._wants_state,
        }
        if not self._plan.separate:
            stage = load_stage(program, "model", device)
            return DataParallelTrainer(
                program, self._plan, self._layout, groups, codecs, stage=stage, batches=batches, rank=rank, facts=facts
            )
        if self._layout.placement == "sharded":
            return ShardedTrainer(
                program,
                self._plan,
                self._layout,
                groups,
                codecs,
                batches=batches,
                rank=rank,
                device=device,
                seed=order.seed,
                facts=facts,
            )
        return SeparatedTrainer(
            program,
            self._plan,
            self._layout,
            groups,
            codecs,
            batches=batches if self._layout.is_conv(rank) else None,
            rank=rank,
            device=device,
            facts=facts,
            host_cores=self._host_cores(),
        )

    def _host_cores(self) -> int:
        """This machine's cores, shared by the FC hosts on it: the CONV ranks wait while hosts compute.

        Never fewer than OMP_NUM_THREADS says; more, because torchrun sets that to 1 for ranks that compute all at once.
        """
        first = self._world.rank - self._world.local_rank
        hosts = [host for host in self._layout.hosts if first <= host < first + self._world.local_size]
        return max(torch.get_num_threads(), available_cores() // max(1, len(hosts)))
