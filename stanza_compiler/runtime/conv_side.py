"""What a CONV rank does in a step."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .allreduce import GradientSum
from .assembly import Assembly
from .batches import Batch, Batches
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
from .replicas import allreduce_bytes, refuse_constant, refuse_unsummed, replicate
from .routes import Route
from .sender import Sender
from .shared_parameters import held, names_within
from .standin import REHEARSAL, backward_zero, find_trained, standing_in
from .stopwatch import Stopwatch
from .tree import flatten
from .wires import Message, describe_wires, is_sender


@dataclass(slots=True)
class _Part:
    """A micro-batch of this rank: its ends of messages, what it holds in this step."""

    senders: dict[int, Sender] = field(default_factory=dict)
    receivers: dict[int, Receiver] = field(default_factory=dict)
    batch: Batch | None = None
    values: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    sent_at: float = 0.0


class ConvSide:
    """The CONV stage on this rank's own part of the batch, in one piece or cut into micro-batches.

    In one piece its gradients are summed by DistributedDataParallel. Of several a GradientSum adds up what they have
    accumulated, each bucket as soon as the last micro-batch's backward has completed it.
    """

    def __init__(
        self,
        program: Program,
        layout: Layout,
        groups: Groups,
        kinds: Mapping[str, Crossing],
        codecs: Codecs,
        *,
        stage: nn.Module,
        batches: Batches,
        rank: int,
        device: torch.device,
        bucket_bytes: int,
        micro_batches: int = 1,
    ) -> None:
        """Gradients are summed over the CONV ranks in pieces of `bucket_bytes`."""
        self.stage = stage
        self.shared = held(program.shared, "conv", stage)
        self.loss: Loss | None = None
        self._program, self._layout, self._groups, self._kinds = program, layout, groups, kinds
        self._batches, self._rank, self._device = batches, rank, device
        self._codecs, self._bucket_bytes = codecs, bucket_bytes
        self._host = layout.host_of(rank)
        self._shared_names = names_within(stage, self.shared)
        self.updater = make_updater(program.hooks, stage, self._shared_names)
        self._count = GlobalCount(groups.counts)
        self._replica: nn.Module = stage
        self._sums = LateSums(codecs)
        self._trained: dict[str, bool] = {}
        self._parts = [_Part() for _ in range(micro_batches)]
        self._part = self._parts[0]
        self._sum: GradientSum | None = None
        self._standin_batch: Batch | None = None
        self._standin_values: dict[str, Tensor] = {}
        self._standin = ExitStack()

    @property
    def senders(self) -> dict[int, Sender]:
        """This micro-batch's ends of messages by the number of the segment that takes them."""
        return self._part.senders

    @property
    def receivers(self) -> dict[int, Receiver]:
        """The same of what CONV takes."""
        return self._part.receivers

    def turn_to(self, micro: int) -> None:
        """What follows is about this micro-batch."""
        self._part = self._parts[micro]

    def describe(self, route: Route) -> Message:
        """The form of what the FC segment of `route` will be sent, once the stage has run on a stand-in."""
        assert self._part.batch is not None
        tensors, template = flatten(self._targets(route, self._part.batch))
        taken = {name: self._part.values[name] for name in route.crossing}
        return Message(describe_wires(taken, tensors, self._kinds), template, len(tensors))

    def load(self, step: int, items: Sequence[int]) -> None:
        """Begin a micro-batch with this rank's items."""
        self.loss = None
        self._part.batch = self._batches.load(step, items) if items else None
        self._part.values = dict(self._part.batch.inputs) if self._part.batch is not None else {}

    def load_ahead(self, step: int, items: Sequence[int]) -> None:
        """Make a later micro-batch ready, while this step's gradients travel."""
        if items:
            self._batches.load_ahead(step, items)

    def receive(self, route: Route, step: int, samples: Sequence[int], watch: Stopwatch) -> None:
        """Wait for what the host gave this rank's CONV segment."""
        if self._part.batch is None:
            return
        receiver = self.receivers[route.number]
        sizes = {self._host: samples[self._rank]}
        assembly = Assembly(receiver.message, sizes, self._device)
        receiver.receive(step, sizes, of=sum(samples), slots=assembly.slots)
        if self._host != self._rank:
            watch.add("round_trip_s", time.perf_counter() - self._part.sent_at)
        (delivery,) = assembly.join()
        self._part.values |= delivery.tensors
        if step != REHEARSAL:
            receiver.expect(assembly.leaves)

    def forward(self, route: Route, step: int, watch: Stopwatch) -> None:
        """Run the segment on this rank's items; on the stand-in where it has none but the others wait for it."""
        if step == REHEARSAL:
            self._standin_batch = self._part.batch
            self._standin_values = {name: self._part.values[name].detach().clone() for name in route.segment.takes}
        if self._part.batch is not None:
            with watch("conv_forward_s"):
                self._run(route, self._part.batch)
        elif self._replica is not self.stage:
            assert self._standin_batch is not None
            self._standin.enter_context(standing_in(self.stage))
            self._part.values = {name: value.clone() for name, value in self._standin_values.items()}
            self._run(route, self._standin_batch)

    def send(self, route: Route, step: int, samples: Sequence[int]) -> int:
        """Send what an FC segment takes; return the bytes sent."""
        if self._part.batch is None:
            return 0
        targets, template = flatten(self._targets(route, self._part.batch))
        self.senders[route.number].check_targets(template)
        taken = [self._part.values[name] for name in route.crossing]
        if route.number == 0:
            taken = [value.clone() for value in taken]  # the CONV segment may overwrite an input while it travels
        tensors = [*taken, *targets]
        block = self._layout.block_of(self._host)
        sent = self.senders[route.number].send(
            step,
            tensors,
            peer=self._host,
            samples=samples[self._rank],
            of=sum(samples) * len(self._parts),
            is_sent=lambda wire: is_sender(wire, self._rank, block, samples),
        )
        self._part.sent_at = time.perf_counter()
        return sent

    def collect(self, route: Route, watch: Stopwatch) -> None:
        """Wait for the gradients of what an FC segment took."""
        if self._part.batch is None:
            return
        received = self.senders[route.number].collect(self._host)
        if self._host != self._rank and received and len(self._parts) == 1:
            watch.add("round_trip_s", time.perf_counter() - self._part.sent_at)
        self._part.gradients |= {
            name: received[index] for index, name in enumerate(route.crossing) if index in received
        }

    def backward(self, route: Route, samples: Sequence[int], watch: Stopwatch) -> None:
        """Propagate the gradients of what the segment gave; its parameters' gradients are summed on the way."""
        if self._sum is not None and self._is_last:
            self._sum.arm()
        with watch("conv_backward_s"):
            if route.is_last:
                self._backward_from_loss(samples)
            elif self._part.batch is None:
                backward_zero([self._part.values[name] for name in route.segment.gives if name in self._part.values])
            else:
                roots = [name for name in route.segment.gives if name in self._part.gradients]
                if roots:
                    torch.autograd.backward(
                        [self._part.values[name] for name in roots], [self._part.gradients[name] for name in roots]
                    )
            for receiver in self.receivers.values():
                receiver.return_rest()
        self._standin.close()

    def finish(self, watch: Stopwatch) -> int:
        """Wait for the gradients' sums; return the bytes sent for gradients of parameters and of received tensors."""
        with watch("conv_allreduce_exposed_s"):
            if self._sum is not None:
                sent = self._sum.finish()
            else:
                self._sums.wait()
                if self._groups.conv is not None:
                    refuse_unsummed(self.stage, {*self._trained, *self._shared_names})
                sent = allreduce_bytes(self.stage, self._trained, self._groups.conv, self._codecs)
        sent += self._finish_transfers()
        for part in self._parts:
            part.values, part.gradients = {}, {}
        return sent

    def update(self, watch: Stopwatch) -> None:
        """Update the parameters from their gradients, which are complete."""
        if self.updater is not None:
            with watch("optimizer_s"):
                self.updater.step()

    def finish_rehearsal(self, route: Route) -> None:
        """See which parameters were reached from the segment's result, then join the other CONV ranks."""
        assert self._part.batch is not None
        if route.is_last:
            assert self.loss is not None
            results = [self.loss.total]
        else:
            results = [self._part.values[name] for name in route.segment.gives]
        trained = find_trained(self.stage, results)
        self._trained = {name: sparse for name, sparse in trained.items() if name not in self._shared_names}
        self._finish_transfers()
        if len(self._parts) == 1:
            self._replica = replicate(
                self.stage, self._trained, self._groups.conv, bucket_bytes=self._bucket_bytes, sums=self._sums
            )
        elif self._groups.conv is not None:
            parameters = dict(self.stage.named_parameters())
            summed = [(parameters[name], sparse) for name, sparse in self._trained.items()]
            group, size = self._groups.conv, self._bucket_bytes
            self._sum = GradientSum(summed, group, bucket_bytes=size, codecs=self._codecs)

    @property
    def has_items(self) -> bool:
        """Whether this step's gradients are of items, not of a stand-in."""
        return any(part.batch is not None for part in self._parts)

    @property
    def _is_last(self) -> bool:
        """Whether no later micro-batch has items."""
        number = next(number for number, part in enumerate(self._parts) if part is self._part)
        return all(part.batch is None for part in self._parts[number + 1 :])

    def _run(self, route: Route, batch: Batch) -> None:
        segment = route.segment
        result = self._replica(*(self._part.values[name] for name in segment.takes))
        if route.is_last:
            self.loss = measure(self._program.hooks, result, batch.targets, samples=batch.samples)
        else:
            given = (result,) if len(segment.gives) == 1 else result
            self._part.values |= dict(zip(segment.gives, given, strict=True))

    def _backward_from_loss(self, samples: Sequence[int]) -> None:
        """Propagate this rank's share of the global mean; the loss of a stand-in weighs nothing."""
        own = self.loss
        if self._part.batch is None:
            self.loss = None
        count = self._count.of_step(self.loss, samples)
        if own is not None:
            refuse_constant(own, self.stage, self._replica)
        if own is not None and own.total.requires_grad:
            weight = 1.0 / count if self.loss is not None and count else 0.0
            torch.autograd.backward(own.total, torch.full_like(own.total, weight))

    def _finish_transfers(self) -> int:
        for part in self._parts:
            for sender in part.senders.values():
                sender.finish()
        return sum(receiver.finish() for part in self._parts for receiver in part.receivers.values())

    def _targets(self, route: Route, batch: Batch) -> Any:
        """The targets, where they go to the host because it computes a loss_fn of the user's."""
        return batch.targets if route.is_last and self._program.hooks.loss_fn is not None else None
