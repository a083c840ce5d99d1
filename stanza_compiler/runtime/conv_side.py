"""What a CONV rank does in a step."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from .assembly import Assembly
from .batches import Batch, Source
from .codecs import Codecs
from .counting import GlobalCount
from .groups import Groups
from .late_sums import LateSums
from .layout import Layout
from .loss import Loss, measure
from .optimizer import make_updater
from .plan_file import Crossing
from .program import Program
from .receiver import Receiver
from .replicas import allreduce_bytes, replicate
from .routes import Route
from .sender import Sender
from .shared_parameters import held, names_within
from .standin import REHEARSAL, backward_zero, find_trained, standing_in
from .stopwatch import Stopwatch
from .tree import flatten
from .wires import Message, describe_wires, is_sender


class ConvSide:
    """The CONV stage on this rank's own part of the batch; its ends of messages by the segment that takes them."""

    def __init__(
        self,
        program: Program,
        layout: Layout,
        groups: Groups,
        kinds: Mapping[str, Crossing],
        codecs: Codecs,
        *,
        stage: nn.Module,
        source: Source,
        rank: int,
        device: torch.device,
        bucket_bytes: int,
    ) -> None:
        """Gradients are summed over the CONV ranks in pieces of `bucket_bytes`."""
        self.stage = stage
        self.shared = held(program.shared, "conv", stage)
        self.loss: Loss | None = None
        self.senders: dict[int, Sender] = {}
        self.receivers: dict[int, Receiver] = {}
        self._program, self._layout, self._groups, self._kinds = program, layout, groups, kinds
        self._source, self._rank, self._device = source, rank, device
        self._codecs, self._bucket_bytes = codecs, bucket_bytes
        self._host = layout.host_of(rank)
        self._shared_names = names_within(stage, self.shared)
        self.updater = make_updater(program.hooks, stage, self._shared_names)
        self._count = GlobalCount(groups.counts)
        self._replica: nn.Module = stage
        self._sums = LateSums()
        self._trained: tuple[str, ...] = ()
        self._batch: Batch | None = None
        self._values: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}
        self._standin_batch: Batch | None = None
        self._standin_values: dict[str, Tensor] = {}
        self._standin = ExitStack()
        self._sent_at = 0.0

    def describe(self, route: Route) -> Message:
        """The form of what the FC segment of `route` will be sent, once the stage has run on a stand-in."""
        assert self._batch is not None
        tensors, template = flatten(self._targets(route, self._batch))
        taken = {name: self._values[name] for name in route.crossing}
        return Message(describe_wires(taken, tensors, self._kinds), template, len(tensors))

    def load(self, items: Sequence[int]) -> None:
        """Begin a step with this rank's items."""
        self.loss = None
        self._batch = self._source.load(items) if items else None
        self._values = dict(self._batch.inputs) if self._batch is not None else {}

    def receive(self, route: Route, step: int, samples: Sequence[int], watch: Stopwatch) -> None:
        """Wait for what the host gave this rank's CONV segment."""
        if self._batch is None:
            return
        receiver = self.receivers[route.number]
        sizes = {self._host: samples[self._rank]}
        assembly = Assembly(receiver.message, sizes, self._device)
        receiver.receive(step, sizes, of=sum(samples), slots=assembly.slots)
        if self._host != self._rank:
            watch.add("round_trip_s", time.perf_counter() - self._sent_at)
        (delivery,) = assembly.join()
        self._values |= delivery.tensors
        if step != REHEARSAL:
            receiver.expect(assembly.leaves)

    def forward(self, route: Route, step: int, watch: Stopwatch) -> None:
        """Run the segment on this rank's items; on the stand-in where it has none but the others wait for it."""
        if step == REHEARSAL:
            self._standin_batch = self._batch
            self._standin_values = {name: self._values[name].detach().clone() for name in route.segment.takes}
        if self._batch is not None:
            with watch("conv_forward_s"):
                self._run(route, self._batch)
        elif self._replica is not self.stage:
            assert self._standin_batch is not None
            self._standin.enter_context(standing_in(self.stage))
            self._values = {name: value.clone() for name, value in self._standin_values.items()}
            self._run(route, self._standin_batch)

    def send(self, route: Route, step: int, samples: Sequence[int]) -> int:
        """Send what an FC segment takes; return the bytes sent."""
        if self._batch is None:
            return 0
        targets, _ = flatten(self._targets(route, self._batch))
        taken = [self._values[name] for name in route.crossing]
        if route.number == 0:
            taken = [value.clone() for value in taken]  # the CONV segment may overwrite an input while it travels
        tensors = [*taken, *targets]
        block = self._layout.block_of(self._host)
        sent = self.senders[route.number].send(
            step,
            tensors,
            peer=self._host,
            samples=samples[self._rank],
            of=sum(samples),
            is_sent=lambda wire: is_sender(wire, self._rank, block, samples),
        )
        self._sent_at = time.perf_counter()
        return sent

    def collect(self, route: Route, watch: Stopwatch) -> None:
        """Wait for the gradients of what an FC segment took."""
        if self._batch is None:
            return
        received = self.senders[route.number].collect(self._host)
        if self._host != self._rank and received:
            watch.add("round_trip_s", time.perf_counter() - self._sent_at)
        self._gradients |= {
            name: received[index] * self._scale for index, name in enumerate(route.crossing) if index in received
        }

    def backward(self, route: Route, samples: Sequence[int], watch: Stopwatch) -> None:
        """Propagate the gradients of what the segment gave; its parameters' gradients are summed on the way."""
        with watch("conv_backward_s"):
            if route.is_last:
                self._backward_from_loss(samples)
            elif self._batch is None:
                backward_zero([self._values[name] for name in route.segment.gives if name in self._values])
            else:
                roots = [name for name in route.segment.gives if name in self._gradients]
                if roots:
                    torch.autograd.backward(
                        [self._values[name] for name in roots], [self._gradients[name] for name in roots]
                    )
            for receiver in self.receivers.values():
                receiver.return_rest()
        self._standin.close()

    def finish(self, watch: Stopwatch) -> int:
        """Wait for the gradients' sums; return the bytes sent for gradients of parameters and of received tensors."""
        with watch("conv_allreduce_exposed_s"):
            self._sums.wait()
        sent = self._finish_transfers() + allreduce_bytes(self.stage, self._trained, self._groups.conv, self._codecs)
        self._values, self._gradients = {}, {}
        return sent

    def update(self, watch: Stopwatch) -> None:
        """Update the parameters from their gradients, which are complete."""
        if self.updater is not None:
            with watch("optimizer_s"):
                self.updater.step()

    def finish_rehearsal(self, route: Route) -> None:
        """See which parameters were reached from the segment's result, then join the other CONV ranks."""
        assert self._batch is not None
        if route.is_last:
            assert self.loss is not None
            results = [self.loss.total]
        else:
            results = [self._values[name] for name in route.segment.gives]
        trained = find_trained(self.stage, results)
        self._trained = tuple(name for name in trained if name not in self._shared_names)
        self._finish_transfers()
        self._replica = replicate(
            self.stage, self._trained, self._groups.conv, self._codecs, bucket_bytes=self._bucket_bytes, sums=self._sums
        )
        for receiver in self.receivers.values():
            receiver.scale = self._scale

    @property
    def shared_scale(self) -> int:
        """How many times too large the gradients of shared parameters are; 0 when they are a stand-in's."""
        return self._scale if self._batch is not None else 0

    @property
    def _scale(self) -> int:
        """DistributedDataParallel averages: n times the gradient makes its mean the sum over the ranks."""
        return self._layout.conv_workers if self._replica is not self.stage else 1

    def _run(self, route: Route, batch: Batch) -> None:
        segment = route.segment
        result = self._replica(*(self._values[name] for name in segment.takes))
        if route.is_last:
            self.loss = measure(self._program.hooks, result, batch.targets, samples=batch.samples)
        else:
            given = (result,) if len(segment.gives) == 1 else result
            self._values |= dict(zip(segment.gives, given, strict=True))

    def _backward_from_loss(self, samples: Sequence[int]) -> None:
        """Propagate this rank's share of the global mean; the loss of a stand-in weighs nothing."""
        own = self.loss
        if self._batch is None:
            self.loss = None
        count = self._count.of_step(self.loss, samples)
        if own is not None and own.total.requires_grad:
            weight = self._scale / count if self.loss is not None and count else 0.0
            torch.autograd.backward(own.total, torch.full_like(own.total, weight))

    def _finish_transfers(self) -> int:
        for sender in self.senders.values():
            sender.finish()
        return sum(receiver.finish() for receiver in self.receivers.values())

    def _targets(self, route: Route, batch: Batch) -> Any:
        """The targets, where they go to the host because it computes a loss_fn of the user's."""
        return batch.targets if route.is_last and self._program.hooks.loss_fn is not None else None
