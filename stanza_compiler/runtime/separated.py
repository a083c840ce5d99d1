"""One synchronous step of a layer-separated program."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from .agreement import agree
from .batches import Batches
from .codecs import Codecs
from .conv_side import ConvSide
from .fc_side import FcSide
from .groups import Groups
from .layout import Layout
from .merge import in_order, move_state
from .pipelined import run_pipelined
from .plan_file import PlanFile
from .program import Program
from .receiver import Receiver
from .routes import Route, find_kinds, find_routes
from .sampler import cut_into, split_items
from .sender import Sender
from .shared_parameters import SharedGradients, owners_values
from .standin import REHEARSAL, standin_items, unchanged_buffers
from .stopwatch import Stopwatch
from .trainer import Record
from .update_rules import one_rule, update_rules
from .weights import load_stage


class SeparatedTrainer:
    """A rank that trains the CONV stage, hosts the FC stage, or both.

    forward   of each segment in turn: what it takes goes up to the hosts (every rank's part, put together in rank
              order) or down to the CONV ranks (each its slice), then it runs; the last one ends in the loss
    backward  the other way: gradients go back as soon as they exist, each segment adds to its parameters' gradients,
              which are summed over the ranks of their stage on the way
    update    both stages, once the gradients of parameters that both hold are summed over the ranks of both
    """

    def __init__(
        self,
        program: Program,
        plan: PlanFile,
        layout: Layout,
        groups: Groups,
        codecs: Codecs,
        *,
        batches: Batches | None,
        rank: int,
        device: torch.device,
        facts: Mapping[str, object],
        host_cores: int = 1,
    ) -> None:
        """`batches` is None on a rank that only hosts; `facts` have to be equal on all ranks.

        A host computes with `host_cores` threads.
        """
        self._program, self._plan, self._layout, self._groups = program, plan, layout, groups
        self._rank, self._device, self._facts, self._codecs = rank, device, facts, codecs
        self._routes = find_routes(program.segments)
        kinds = find_kinds(program, plan)
        self._conv: ConvSide | None = None
        self._fc: FcSide | None = None
        if batches is not None:
            self._conv = ConvSide(
                program,
                layout,
                groups,
                kinds,
                codecs,
                stage=load_stage(program, "conv", device),
                batches=batches,
                rank=rank,
                device=device,
                micro_batches=plan.micro_batches,
                bucket_bytes=plan.bucket_bytes,
            )
        if rank in layout.hosts:
            self._fc = FcSide(
                program,
                layout,
                groups,
                kinds,
                codecs,
                stage=load_stage(program, "fc", device),
                rank=rank,
                device=device,
                cores=host_cores,
                micro_batches=plan.micro_batches,
            )

        self._sides = [side for side in (self._conv, self._fc) if side is not None]
        self._shared: SharedGradients | None = None
        if groups.shared is not None and self._sides[0].shared:
            self._shared = SharedGradients([side.shared for side in self._sides], groups.shared, groups.meta)

    def start(self, items: Sequence[int]) -> None:
        """Rehearse a step on stand-ins, and before each message agree on its form.

        Raises DisagreementError naming rank and tensor.
        """
        conv, fc, watch = self._conv, self._fc, Stopwatch()
        rules = one_rule(*(update_rules(side.updater, side.shared) for side in self._sides))
        agree({**self._facts, **rules}, None, self._groups.meta)
        parts = [standin_items(part, items) for part in self._split(items)]
        samples = [len(part) for part in parts]
        if conv is not None:
            conv.load(REHEARSAL, parts[self._rank])
        with ExitStack() as unchanged:
            for side in self._sides:
                unchanged.enter_context(unchanged_buffers(side.stage))
            for route in self._routes:
                if route.receives:
                    self._connect(route)
                if route.segment.role == "conv" or not route.is_last:
                    self._forward(route, REHEARSAL, samples, watch)
            if conv is not None:
                conv.finish_rehearsal(next(route for route in self._routes if route.segment.role == "conv"))
            if fc is not None:
                fc.finish_rehearsal()

    def step(self, number: int, items: Sequence[int], following: Sequence[int] = ()) -> Record:
        """Train on one global batch: forward through the segments, backward the other way, update."""
        watch = Stopwatch()
        pieces = self._pieces(items)
        if self._is_pipeline:
            sent = self._pipelined(number, pieces, watch)
        else:
            (parts,) = pieces
            sent = self._walk(number, parts, watch)
        if self._conv is not None:
            for piece in self._pieces(following):
                self._conv.load_ahead(number + 1, piece[self._rank])
        losses = [side.loss for side in self._sides if side.loss is not None]
        sides = self._in_order_of_sums()
        for side in sides:
            sent += side.finish(watch)
            if self._shared is None:
                side.update(watch)
        if self._shared is not None:
            sent += self._sum_shared(self._shared, watch)
            for side in sides:
                side.update(watch)
        return Record(sum(loss.value for loss in losses), sum(loss.count for loss in losses), sent, watch.seconds)

    def state(self) -> dict[str, Any] | None:
        """CONV rank 0's and host 0's tensors, merged on rank 0."""
        fc_state = self._fc.stage.state_dict() if self._fc is not None else None
        fc_state = move_state(fc_state, self._layout.hosts[0], self._rank, self._groups.meta)
        if self._rank != 0:
            return None
        assert self._conv is not None
        assert fc_state is not None
        conv_state = self._conv.stage.state_dict()
        conv_state.update(owners_values(self._program.shared, "conv", self._conv.stage, fc_state))
        return in_order(self._plan.state_names, fc_state, conv_state)

    def _sum_shared(self, shared: SharedGradients, watch: Stopwatch) -> int:
        """Complete the gradients of shared parameters; return the bytes sent."""
        if self._conv is None:
            return shared.reduce([True])
        with watch("conv_backward_s"):
            return shared.reduce([self._conv.has_items, *([True] if self._fc is not None else [])])

    @property
    def _is_pipeline(self) -> bool:
        return [route.segment.role for route in self._routes] == ["conv", "fc"]

    def _pipelined(self, number: int, pieces: Sequence[Sequence[tuple[int, ...]]], watch: Stopwatch) -> int:
        """Forward and backward of the order conv-fc; return the bytes sent."""
        return run_pipelined(
            self._conv,
            self._fc,
            self._routes,
            number,
            items=[piece[self._rank] if self._conv is not None else () for piece in pieces],
            samples=[[len(part) for part in piece] for piece in pieces],
            watch=watch,
        )

    def _walk(self, number: int, parts: Sequence[tuple[int, ...]], watch: Stopwatch) -> int:
        """Forward through the segments of any order, backward the other way; return the bytes sent."""
        samples = [len(part) for part in parts]
        if self._conv is not None:
            self._conv.load(number, parts[self._rank])
        sent = sum(self._forward(route, number, samples, watch) for route in self._routes)
        for route in reversed(self._routes):
            self._backward(route, samples, watch)
        return sent

    def _pieces(self, items: Iterable[int]) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """By micro-batch each CONV rank's items."""
        return cut_into(self._plan.micro_batches, self._split(items))

    def _split(self, items: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        return split_items(tuple(items), self._layout.conv_workers)

    def _in_order_of_sums(self) -> list[ConvSide | FcSide]:
        """Whose gradients are complete first: a lone host's wait for nobody, several hosts' for the larger sum."""
        sides: list[ConvSide | FcSide | None] = [self._fc, self._conv]
        if self._layout.fc_workers > 1:
            sides.reverse()
        return [side for side in sides if side is not None]

    def _connect(self, route: Route) -> None:
        """Agree on the message into a segment, then build its ends, one pair for each micro-batch."""
        giver: ConvSide | FcSide | None = self._conv
        taker: ConvSide | FcSide | None = self._fc
        if route.segment.role == "conv":
            giver, taker = taker, giver
        message = giver.describe(route) if giver is not None else None
        agreed = agree({}, message, self._groups.meta)
        assert agreed is not None
        for micro in reversed(range(self._plan.micro_batches)):
            channel = replace(self._groups.channels[route.number], micro=micro)
            for side in self._sides:
                side.turn_to(micro)
            receiver = None
            if taker is not None:
                receiver = Receiver(self._rank, channel, agreed, self._device, self._codecs.boundary)
                taker.receivers[route.number] = receiver
            if giver is not None:
                giver.senders[route.number] = Sender(self._rank, channel, agreed, receiver, self._codecs.boundary)

    def _forward(self, route: Route, step: int, samples: Sequence[int], watch: Stopwatch) -> int:
        """Bring a segment what it takes and run it; return the bytes sent."""
        conv, fc, sent = self._conv, self._fc, 0
        if route.segment.role == "conv":
            if route.receives and fc is not None:
                sent += fc.send(route, step, samples, watch)
            if conv is not None:
                if route.receives:
                    conv.receive(route, step, samples, watch)
                conv.forward(route, step, watch)
        else:
            if conv is not None:
                sent += conv.send(route, step, samples)
            if fc is not None:
                fc.receive(route, step, samples, watch)
                fc.forward(route, watch)
        return sent

    def _backward(self, route: Route, samples: Sequence[int], watch: Stopwatch) -> None:
        """Propagate gradients through a segment, and bring those of what it took to where that came from."""
        conv, fc = self._conv, self._fc
        if route.segment.role == "conv":
            if conv is not None:
                conv.backward(route, samples, watch)
            if fc is not None:
                fc.compute_late(watch)
                if route.receives:
                    fc.collect(route, samples)
        else:
            if fc is not None:
                if route.is_last:
                    fc.count(samples)
                fc.backward(route, watch)
            if conv is not None:
                conv.collect(route, watch)
