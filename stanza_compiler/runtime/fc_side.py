"""What a host of the FC stage does in a step."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import reduce
from operator import add

import torch
from torch import Tensor, nn

from .allreduce import GradientSum
from .assembly import Assembly, Delivery
from .codecs import Codecs
from .cores import idle_cores, threads
from .counting import GlobalCount, gather
from .groups import Groups
from .held import Held
from .late_gradients import LateGradients
from .layout import Layout
from .loss import Loss, measure
from .optimizer import make_updater
from .plan_file import Crossing
from .program import Program
from .receiver import Receiver
from .replicas import refuse_unsummed
from .routes import Route
from .sender import Sender
from .shared_parameters import held, names_within
from .shares import Shared
from .standin import REHEARSAL, parameters_behind
from .stopwatch import Stopwatch
from .wires import Message, is_sender


@dataclass(slots=True)
class _Part:
    """A micro-batch: the ends of its messages, what it holds in this step."""

    receivers: dict[int, Receiver] = field(default_factory=dict)
    arrival: tuple[Assembly, Future[None]] | None = None
    deliveries: list[Delivery] = field(default_factory=list)
    loss: Loss | None = None


class FcSide:
    """The FC stage on the parts of the CONV ranks of this host's block.

    What a segment took or gave is kept by name and rank, for the CONV ranks and for a later segment; the gradients
    that come back of it meet under the same names.

        segment 0   ids ──> embeddings ──┬── slices ──> CONV ranks ── h ──┐
                                         └── kept ──────────────────────> segment 2 ──> loss
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
        rank: int,
        device: torch.device,
        cores: int,
        micro_batches: int = 1,
    ) -> None:
        """`cores` are the threads to compute with: the CONV ranks wait meanwhile.

        What runs beside the sums of gradients leaves one to them: its threads would wait for each other.
        """
        self.stage = stage
        self.shared = held(program.shared, "fc", stage)
        self.loss: Loss | None = None
        self.senders: dict[int, Sender] = {}
        self._hooks, self._groups, self._kinds, self._device = program.hooks, groups, kinds, device
        self._codecs, self._cores, self._cores_beside = codecs, cores, max(1, cores - 1)
        self._rank = rank
        # nccl wants all calls in the same order on every rank.
        self._listener = ThreadPoolExecutor(1) if micro_batches > 1 and device.type == "cpu" else None
        self._block = layout.block_of(rank)
        self._shared_names = names_within(stage, self.shared)
        self.updater = make_updater(program.hooks, stage, self._shared_names)
        self._count = GlobalCount(groups.counts)
        self._late = LateGradients(stage, idle_cores(cores) if device.type == "cpu" else None, rate=self._rate)
        self._sum: GradientSum | None = None
        self._fronts: set[Tensor] = set()
        self._incomplete: set[Tensor] = set()
        self._summed: set[str] = set()
        self._parts = [_Part() for _ in range(micro_batches)]
        self._part = self._parts[0]
        self._divisor = 0.0
        self._kept_leaves: dict[str, list[Shared]] = {}
        self._held = Held(kinds)

    @property
    def receivers(self) -> dict[int, Receiver]:
        """This micro-batch's ends of messages by the number of the segment that takes them."""
        return self._part.receivers

    @property
    def count_needs_targets(self) -> bool:
        """Whether `count` has to come after the forward of all micro-batches."""
        return self._count.needs_targets

    def turn_to(self, micro: int) -> None:
        """What follows is about this micro-batch."""
        self._part = self._parts[micro]

    def describe(self, route: Route) -> Message:
        """The form of what the CONV segment of `route` will be sent, once the stage has run on stand-ins."""
        return Message(self._held.describe(route.crossing), None, 0)

    def expect(self, route: Route, step: int, samples: Sequence[int]) -> None:
        """Let the parts of other ranks come while this rank computes, each micro-batch once the ones before are here.

        Of a single micro-batch `receive` does it all: nothing is computed meanwhile.
        """
        own = self._own(samples)
        others = {rank: count for rank, count in own.items() if rank != self._rank}
        if self._listener is not None and others:
            assembly = self._assembly(route, own)
            begun = self._listener.submit(self._receive, self.receivers[route.number], assembly, others, step, samples)
            self._part.arrival = assembly, begun

    def receive(self, route: Route, step: int, samples: Sequence[int], watch: Stopwatch) -> None:
        """Wait for the parts of the block's ranks, and put them together with what was kept for this segment."""
        own = self._own(samples)
        self._part.deliveries = []
        if not own:
            return
        receiver = self.receivers[route.number]
        if self._part.arrival is not None:
            assembly, arrival = self._part.arrival
            self._part.arrival = None
            arrival.result()
            if self._rank in own:
                receiver.receive_own(assembly.slots)
        else:
            assembly = self._assembly(route, own)
            self._receive(receiver, assembly, own, step, samples)
        for rank in own:
            assembly.keep(rank, self._held.values(route.kept, rank))
        self._part.deliveries = assembly.join(
            apart=any(self._kinds[name].kind == "per-rank" for name in route.segment.gives if name in self._kinds)
        )
        watch.add("up_s", receiver.receive_s)
        if not route.is_last:
            for index, name in enumerate(route.crossing):
                self._held.keep(name, {rank: assembly.part(rank, index) for rank in own})
        first_kept = len(receiver.message.wires)
        self._kept_leaves = {
            name: [leaf for leaf in assembly.leaves if leaf.wire == index]
            for index, name in enumerate(route.kept, first_kept)
        }
        if step != REHEARSAL:
            receiver.expect([leaf for leaf in assembly.leaves if leaf.wire < first_kept])

    def forward(self, route: Route, watch: Stopwatch) -> None:
        """Run a segment, once if the parts could be put together, else once per rank."""
        segment, losses = route.segment, []
        with watch("fc_forward_s"), threads(self._cores), self._late.forward():
            for delivery in self._part.deliveries:
                result = getattr(self.stage, segment.method)(*(delivery.tensors[name] for name in segment.takes))
                if route.is_last:
                    samples = sum(delivery.samples.values())
                    losses.append(measure(self._hooks, result, delivery.targets, samples=samples))
                else:
                    given = (result,) if len(segment.gives) == 1 else result
                    for name, tensor in zip(segment.gives, given, strict=True):
                        self._held.give(name, tensor, delivery.samples)
        if losses:
            self._part.loss = reduce(add, losses)
            found = self._part.loss.detached()
            self.loss = self.loss + found if self.loss is not None else found

    def count(self, samples: Sequence[int]) -> None:
        """Learn what the loss is divided by: of a mean the samples of the step, else what all hosts have counted."""
        self._divisor = self._count.of_step(self.loss, samples)

    def send(self, route: Route, step: int, samples: Sequence[int], watch: Stopwatch) -> int:
        """Send every rank its part of what the CONV segment takes; return the bytes sent."""
        sent = 0
        for rank, count in self._own(samples).items():
            values = self._held.values(route.crossing, rank)
            sent += self.senders[route.number].send(step, values, peer=rank, samples=count, of=sum(samples))
        receiver = self.receivers[route.number - 1]
        if self._part.deliveries and receiver.started_at is not None:
            watch.add("turnaround_s", time.perf_counter() - receiver.started_at)
        return sent

    def collect(self, route: Route, samples: Sequence[int]) -> None:
        """Wait for the gradients of what the CONV segment took."""
        for rank in self._own(samples):
            for index, gradient in self.senders[route.number].collect(rank).items():
                self._held.add_gradient(route.crossing[index], rank, gradient)

    def backward(self, route: Route, watch: Stopwatch) -> None:
        """Propagate this host's share of the global mean, or the gradients of what the segment gave.

        Input gradients leave as soon as they exist; weight gradients are left to idle cores and `compute_late`, unless
        the other hosts wait for them. The sum over the hosts begins with the last micro-batch.
        """
        self._incomplete = fronts = self._fronts if route.number else set()
        sums = self._sum if self._part is self._parts[-1] else None
        with watch("fc_backward_s"), threads(self._cores):
            roots = [root for root in self._roots(route) if root[0].requires_grad]
            if sums is not None:
                sums.arm(later=fronts | self._late.expected())
            if roots:
                self._late.backward([tensor for tensor, _ in roots], [gradient for _, gradient in roots])
            receiver = self.receivers[route.number]
            receiver.return_rest()
            for name, leaves in self._kept_leaves.items():
                for leaf in leaves:
                    for rank, piece in leaf.pieces(leaf.tensor.grad) if leaf.tensor.grad is not None else ():
                        self._held.add_gradient(name, rank, piece)
            self._kept_leaves = {}
        if self._part.deliveries and receiver.started_at is not None and receiver.returned_at is not None:
            watch.add("turnaround_s", receiver.returned_at - receiver.started_at)
        self._part.loss = None
        if sums is not None:
            sums.arm(later=fronts)
            self.compute_late(watch)
        elif self._part is self._parts[-1]:
            self._late.begin()

    def compute_late(self, watch: Stopwatch) -> None:
        """Compute the weight gradients that backward has left."""
        with watch("fc_late_s"):
            self._late.join()
            with threads(self._cores_beside):
                self._late.compute(self._sum.arrived if self._sum is not None else lambda parameter: None)

    def finish(self, watch: Stopwatch) -> int:
        """Complete the parameters' gradients, summed over the hosts; return the bytes sent for gradients."""
        sent = self._finish_transfers()
        self.compute_late(watch)
        with watch("fc_late_s"):
            if self._sum is None:
                self._sum = self._make_sum()
            if self._sum is not None:
                refuse_unsummed(self.stage, self._summed)
                sent += self._sum.finish()
        return sent

    def update(self, watch: Stopwatch) -> None:
        """Update the parameters from their gradients, which are complete."""
        if self.updater is not None:
            with watch("fc_late_s"), threads(self._cores_beside):
                self.updater.step()

    def finish_rehearsal(self) -> None:
        """See which parameters a front segment reaches: their gradients come last."""
        self._fronts = parameters_behind([*self._held.given()])
        self._finish_transfers()

    def _assembly(self, route: Route, own: Mapping[int, int]) -> Assembly:
        message = self.receivers[route.number].message
        return Assembly(message, own, self._device, kept=self._held.describe(route.kept))

    def _receive(
        self, receiver: Receiver, assembly: Assembly, of_ranks: Mapping[int, int], step: int, samples: Sequence[int]
    ) -> None:
        receiver.receive(
            step,
            of_ranks,
            of=sum(samples) * len(self._parts),
            slots=assembly.slots,
            is_sent=lambda wire, rank: is_sender(wire, rank, self._block, samples),
        )

    def _own(self, samples: Sequence[int]) -> dict[int, int]:
        """The part sizes of the block's ranks, empty ones left out."""
        return {rank: samples[rank] for rank in self._block if samples[rank]}

    def _roots(self, route: Route) -> list[tuple[Tensor, Tensor | None]]:
        """Where backward through a segment begins: the loss, or what it gave with the gradients of that."""
        if not route.is_last:
            return [*self._held.roots(route.segment.gives)]
        loss = self._part.loss
        return [(loss.mean_over(self._divisor), None)] if loss is not None else []

    def _rate(self, parameter: Tensor) -> float | None:
        """At which rate its gradient may be taken from a parameter: one that nobody adds to and no backward reads."""
        alone = self._groups.hosts is None and parameter not in self._incomplete
        if self.updater is None or not alone or any(parameter is each for each in self.shared.values()):
            return None
        return self.updater.rate(parameter)

    def _finish_transfers(self) -> int:
        """Wait until all has left; return the bytes of returned gradients."""
        for sender in self.senders.values():
            sender.finish()
        for part in self._parts:
            part.deliveries, part.loss = [], None
        self.loss, self._kept_leaves = None, {}
        self._held.clear()
        return sum(receiver.finish() for part in self._parts for receiver in part.receivers.values())

    def _make_sum(self) -> GradientSum | None:
        """The sum over the parameters that got a gradient in the first step, on whichever host, but for shared ones."""
        if self._groups.hosts is None:
            return None
        parameters = {name: each for name, each in self.stage.named_parameters() if name not in self._shared_names}
        own = {name: parameter.grad.is_sparse for name, parameter in parameters.items() if parameter.grad is not None}
        sparse: dict[str, bool] = {}
        for found in gather(own, self._groups.forms):
            sparse |= found
        # Buckets are filled from the end: the front segment's gradients come last.
        self._summed = {*sparse, *self._shared_names}
        names = sorted(sparse, key=lambda name: (parameters[name] not in self._fronts, list(parameters).index(name)))
        return GradientSum(
            [(parameters[name], sparse[name]) for name in names],
            self._groups.hosts,
            codecs=self._codecs,
        )
