"""One synchronous step of a layer-separated program."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .agreement import agree
from .batches import Source
from .conv_side import ConvSide
from .fc_side import FcSide
from .groups import Groups
from .inbox import Inbox
from .layout import Layout
from .merge import in_order, move_state
from .outbox import Outbox
from .plan_file import PlanFile
from .program import Program
from .sampler import split_items
from .stopwatch import Stopwatch
from .trainer import Record
from .weights import load_stage
from .wires import Message


class SeparatedTrainer:
    """A rank that trains the CONV stage, hosts the FC stage, or both.

    1 conv  h_i = conv(x_i); send boundary tensors and targets to the host
    2 fc    H_j = cat(h_i); backward of the host's share of the global mean; slices of dH_j leave
    3 conv  backward from dh_i; gradients are summed over the CONV ranks on the way
    4 fc    gradients are summed over the hosts, beside 3
    5 both  optimiser step
    """

    def __init__(
        self,
        program: Program,
        plan: PlanFile,
        layout: Layout,
        groups: Groups,
        *,
        source: Source | None,
        rank: int,
        device: torch.device,
        facts: Mapping[str, object],
    ) -> None:
        """`source` is None on a rank that only hosts; `facts` have to be equal on all ranks."""
        assert [segment.role for segment in program.segments] == ["conv", "fc"], "other orders come later"
        self._program, self._plan, self._layout, self._groups = program, plan, layout, groups
        self._rank, self._device, self._facts = rank, device, facts
        self._conv: ConvSide | None = None
        self._fc: FcSide | None = None
        if source is not None:
            stage = load_stage(program, "conv", device)
            self._conv = ConvSide(program, layout, groups, stage=stage, source=source, rank=rank)

    def start(self, items: Sequence[int]) -> None:
        """Agree on what crosses, then build both ends of the boundary.

        Raises DisagreementError naming rank and tensor.
        """
        message: Message | None = None
        if self._conv is not None:
            own = split_items(tuple(items), self._layout.conv_workers)[self._rank]
            message = self._conv.describe(own, items, self._plan)
        agreed = agree(self._facts, message, self._groups.meta)
        assert agreed is not None
        inbox = None
        if self._rank in self._layout.hosts:
            inbox = Inbox(self._rank, self._layout, self._groups, agreed, self._device)
            self._fc = FcSide(
                self._program, self._groups, stage=load_stage(self._program, "fc", self._device), inbox=inbox
            )
        if self._conv is not None:
            self._conv.connect(Outbox(self._rank, self._layout, self._groups, agreed, inbox))

    def step(self, number: int, items: Sequence[int]) -> Record:
        """Train on one global batch: forward through the segments, backward the other way, update."""
        conv, fc, watch, sent = self._conv, self._fc, Stopwatch(), 0
        parts = split_items(tuple(items), self._layout.conv_workers)
        samples = [len(part) for part in parts]
        for segment in self._program.segments:
            if segment.role == "conv" and conv is not None:
                conv.forward(segment, parts[self._rank], items, watch)
            elif segment.role == "fc":
                if conv is not None:
                    sent += conv.send(segment, number, samples)
                if fc is not None:
                    fc.receive(number, samples, watch)
                    fc.forward(segment, watch)
        for segment in reversed(self._program.segments):
            if segment.role == "conv" and conv is not None:
                conv.backward(segment, watch)
            elif segment.role == "fc":
                if fc is not None:
                    fc.backward(samples, watch)
                if conv is not None:
                    conv.collect(segment, watch)
        if fc is not None:
            sent += fc.finish(watch)
        if conv is not None:
            sent += conv.finish(watch)
        loss = fc.loss if fc is not None else None
        return Record(loss.value if loss else 0.0, loss.count if loss else 0.0, sent, watch.seconds)

    def state(self) -> dict[str, Any] | None:
        """CONV rank 0's and host 0's tensors, merged on rank 0."""
        fc_state = self._fc.stage.state_dict() if self._fc is not None else None
        fc_state = move_state(fc_state, self._layout.hosts[0], self._rank, self._groups.meta)
        if self._rank != 0:
            return None
        assert self._conv is not None
        assert fc_state is not None
        return in_order(self._plan.state_names, fc_state, self._conv.stage.state_dict())
