"""One step of the whole model trained data-parallel."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from .agreement import agree
from .batches import Batch, Batches
from .codecs import Codecs
from .groups import Groups, sum_count
from .late_sums import LateSums
from .layout import Layout
from .loss import Loss, measure
from .merge import in_order
from .optimizer import make_updater
from .plan_file import PlanFile
from .program import Program
from .replicas import allreduce_bytes, refuse_constant, refuse_unsummed, replicate
from .sampler import split_items
from .standin import REHEARSAL, find_trained, standin_items, standing_in, unchanged_buffers
from .stopwatch import Stopwatch
from .trainer import Record
from .wires import Message


class DataParallelTrainer:
    """Every rank trains the whole model on its part; exact for parts of any size, empty ones included."""

    def __init__(
        self,
        program: Program,
        plan: PlanFile,
        layout: Layout,
        groups: Groups,
        codecs: Codecs,
        *,
        stage: nn.Module,
        batches: Batches,
        rank: int,
        facts: Mapping[str, object],
    ) -> None:
        """`facts` have to be equal on all ranks."""
        self._program, self._plan, self._layout, self._groups = program, plan, layout, groups
        self._stage, self._batches, self._rank, self._facts = stage, batches, rank, facts
        self._codecs, self._sums = codecs, LateSums(codecs)
        self._updater = make_updater(program.hooks, stage)
        self._replica: nn.Module = stage
        self._trained: tuple[str, ...] = ()
        self._counted = False

    def start(self, items: Sequence[int]) -> None:
        """See on a stand-in which parameters are trained, then join the other ranks."""
        batch = self._batches.load(REHEARSAL, standin_items(self._own(items), items))
        with unchanged_buffers(self._stage):
            loss = self._loss(batch, self._stage)
            self._trained = tuple(find_trained(self._stage, [loss.total]))
        self._counted = loss.counted
        agree({**self._facts, "(sum, count) loss": loss.counted}, Message((), None, 0), self._groups.meta)
        self._replica = replicate(
            self._stage, self._trained, self._groups.conv, bucket_bytes=self._plan.bucket_bytes, sums=self._sums
        )

    def step(self, number: int, items: Sequence[int], following: Sequence[int] = ()) -> Record:
        """Train on one global batch; a rank without items runs on a stand-in that weighs nothing.

        The next batch is loaded while the gradients travel.
        """
        own, following_own, watch = self._own(items), self._own(following), Stopwatch()
        with ExitStack() as standin:
            if not own:
                standin.enter_context(standing_in(self._stage))
            batch = self._batches.load(number, own or standin_items(own, items))
            with watch("conv_forward_s"):
                loss = self._loss(batch, self._replica)
            share = loss.count if own else 0.0
            with watch("conv_backward_s"):
                count = sum_count(share, self._groups.counts) if self._counted else float(len(items))
                refuse_constant(loss, self._stage, self._replica)
                if loss.total.requires_grad:
                    weight = 1.0 / count if own and count else 0.0
                    torch.autograd.backward(loss.total, torch.full_like(loss.total, weight))
        if following_own:
            self._batches.load_ahead(number + 1, following_own)
        with watch("conv_allreduce_exposed_s"):
            self._sums.wait()
        if self._groups.conv is not None:
            refuse_unsummed(self._stage, self._trained)
        sent = allreduce_bytes(self._stage, self._trained, self._groups.conv, self._codecs)
        if self._updater is not None:
            with watch("optimizer_s"):
                self._updater.step()
        return Record(loss.value if own else 0.0, share, sent, watch.seconds)

    def state(self) -> dict[str, Any] | None:
        """Rank 0's weights."""
        return in_order(self._plan.state_names, self._stage.state_dict()) if self._rank == 0 else None

    def _own(self, items: Sequence[int]) -> tuple[int, ...]:
        return split_items(tuple(items), self._layout.conv_workers)[self._rank]

    def _loss(self, batch: Batch, module: nn.Module) -> Loss:
        (segment,) = self._program.segments
        call: Any = module if segment.method == "forward" else getattr(self._stage, segment.method)
        outputs = call(*(batch.inputs[name] for name in segment.takes))
        return measure(self._program.hooks, outputs, batch.targets, samples=batch.samples)
