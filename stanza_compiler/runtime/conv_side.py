"""What a CONV rank does in a step."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from .batches import Batch, Source
from .groups import Groups
from .layout import Layout
from .optimizer import make_updater
from .outbox import Outbox
from .plan_file import Crossing, PlanFile
from .program import Program, Segment
from .replicas import allreduce_bytes, replicate
from .standin import backward_zero, find_trained, standin_items, unchanged_buffers
from .stopwatch import Stopwatch
from .tree import flatten
from .wires import Message, describe_wires


class ConvSide:
    """The CONV stage on this rank's own part of the batch."""

    def __init__(
        self, program: Program, layout: Layout, groups: Groups, *, stage: nn.Module, source: Source, rank: int
    ) -> None:
        self.stage = stage
        self._program, self._layout, self._groups, self._source, self._rank = program, layout, groups, source, rank
        self._updater = make_updater(program.hooks, stage)
        self._replica: nn.Module = stage
        self._outbox: Outbox | None = None
        self._trained: tuple[str, ...] = ()
        self._batch: Batch | None = None
        self._values: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}
        self._standin = ExitStack()
        self._sent_at = 0.0

    def describe(self, items: Sequence[int], everyones: Sequence[int], plan: PlanFile) -> Message:
        """The form of what this rank will send, seen from a run on a stand-in."""
        batch = self._source.load(standin_items(items, everyones))
        first, second = self._program.segments
        with unchanged_buffers(self.stage):
            values = {**batch.inputs, **self._run(first, batch.inputs, self.stage)}
            self._trained = find_trained(self.stage, [values[name] for name in first.gives])
        tensors, template = self._targets(batch)
        boundary = {name: values[name] for name in second.takes}
        kinds = {**_kinds_of_inputs(self._program), **plan.boundary}
        return Message(describe_wires(boundary, tensors, kinds), template, len(tensors))

    def connect(self, outbox: Outbox) -> None:
        """Take the way to the host, join the other CONV ranks."""
        self._outbox = outbox
        self._replica = replicate(self.stage, self._trained, self._groups.conv)

    def forward(self, segment: Segment, items: Sequence[int], everyones: Sequence[int], watch: Stopwatch) -> None:
        """Run a segment on this rank's items; on a stand-in where it has none but the others wait for it."""
        self._batch = self._source.load(items) if items else None
        if self._batch is not None:
            with watch("conv_forward_s"):
                self._values = {**self._batch.inputs, **self._run(segment, self._batch.inputs, self._replica)}
        elif self._replica is not self.stage:
            self._standin.enter_context(unchanged_buffers(self.stage))
            inputs = self._source.load(standin_items(items, everyones)).inputs
            self._values = self._run(segment, inputs, self._replica)

    def send(self, segment: Segment, step: int, samples: Sequence[int]) -> int:
        """Send what the FC `segment` takes; return the bytes sent."""
        if self._batch is None:
            return 0
        assert self._outbox is not None
        tensors, _ = self._targets(self._batch)
        sent = self._outbox.send(step, [*(self._values[name] for name in segment.takes), *tensors], samples)
        self._sent_at = time.perf_counter()
        return sent

    def collect(self, segment: Segment, watch: Stopwatch) -> None:
        """Wait for the gradients of what the FC `segment` took."""
        if self._batch is None:
            return
        assert self._outbox is not None
        # DistributedDataParallel averages: n times the gradient makes its mean the sum over the ranks.
        scale = self._layout.conv_workers if self._replica is not self.stage else 1
        received = self._outbox.collect()
        if self._outbox.is_remote and received:
            watch.add("round_trip_s", time.perf_counter() - self._sent_at)
        self._gradients = {
            name: received[index] * scale for index, name in enumerate(segment.takes) if index in received
        }

    def backward(self, segment: Segment, watch: Stopwatch) -> None:
        """Propagate the gradients of what `segment` gave; its parameters' gradients are summed on the way."""
        with watch("conv_backward_s"):
            if self._batch is None:
                backward_zero([self._values[name] for name in segment.gives if name in self._values])
            else:
                roots = [name for name in segment.gives if name in self._gradients]
                if roots:
                    torch.autograd.backward(
                        [self._values[name] for name in roots], [self._gradients[name] for name in roots]
                    )
        self._standin.close()

    def finish(self, watch: Stopwatch) -> int:
        """Update the parameters; return the bytes that summing their gradients sent."""
        if self._outbox is not None:
            self._outbox.finish()
        self._values, self._gradients = {}, {}
        sent = allreduce_bytes(self.stage, self._trained, self._groups.conv)
        if self._updater is not None:
            with watch("optimizer_s"):
                self._updater.step()
        return sent

    def _run(self, segment: Segment, inputs: dict[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
        call: Any = module if segment.method == "forward" else getattr(self.stage, segment.method)
        result = call(*(inputs[name] for name in segment.takes))
        given = (result,) if len(segment.gives) == 1 else result
        return dict(zip(segment.gives, given, strict=True))

    def _targets(self, batch: Batch) -> tuple[tuple[Tensor, ...], Any]:
        """The tensors and the form of the targets, when a loss_fn of the user's wants them."""
        return flatten(batch.targets if self._program.hooks.loss_fn is not None else None)


def _kinds_of_inputs(program: Program) -> dict[str, Crossing]:
    return {
        name: Crossing("replicated" if example.batch_axis is None else "batched", example.batch_axis)
        for name, example in program.example_inputs.items()
    }
