"""What a host of the FC stage does in a step."""

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .allreduce import GradientSum
from .assembly import Delivery
from .errors import DisagreementError
from .groups import Groups, sum_count
from .inbox import Inbox
from .loss import Loss, measure
from .optimizer import make_updater
from .program import Program, Segment
from .stopwatch import Stopwatch


class FcSide:
    """The FC stage on the parts of the CONV ranks of this host's block."""

    def __init__(self, program: Program, groups: Groups, *, stage: nn.Module, inbox: Inbox) -> None:
        self.stage, self.inbox = stage, inbox
        self._hooks, self._groups = program.hooks, groups
        self._updater = make_updater(program.hooks, stage)
        self._sum: GradientSum | None = None
        self._counted: bool | None = None
        self._deliveries: list[Delivery] = []
        self.loss: Loss | None = None

    def receive(self, step: int, samples: Sequence[int], watch: Stopwatch) -> None:
        """Wait for the parts of the block's ranks."""
        self._deliveries = self.inbox.receive(step, samples)
        watch.add("up_s", self.inbox.receive_s)

    def forward(self, segment: Segment, watch: Stopwatch) -> None:
        """Run the last segment, once if the parts could be put together, else once per rank."""
        with watch("fc_forward_s"):
            losses = []
            for delivery in self._deliveries:
                outputs = getattr(self.stage, segment.method)(*delivery.tensors)
                losses.append(measure(self._hooks, outputs, delivery.targets, samples=delivery.samples))
            self.loss = reduce(add, losses) if losses else None

    def backward(self, samples: Sequence[int], watch: Stopwatch) -> None:
        """Propagate this host's share of the global mean; input gradients leave as soon as they exist."""
        with watch("fc_backward_s"):
            count = self._global_count(samples)
            if self._sum is not None:
                self._sum.arm()
            if self.loss is not None and self.loss.total.requires_grad:
                torch.autograd.backward(self.loss.mean_over(count))
            self.inbox.return_rest()
        if self._deliveries:
            watch.add("turnaround_s", self.inbox.turnaround_s)

    def finish(self, watch: Stopwatch) -> int:
        """Sum the gradients over the hosts, update; return the bytes sent."""
        sent = self.inbox.finish()
        with watch("fc_exposed_s"):
            if self._sum is None:
                self._sum = self._make_sum()
            if self._sum is not None:
                sent += self._sum.finish()
        if self._updater is not None:
            with watch("optimizer_s"):
                self._updater.step()
        return sent

    def _global_count(self, samples: Sequence[int]) -> float:
        counted = self.loss.counted if self.loss is not None else None
        if self._counted is None:
            self._counted = self._agree_on_form(counted)
        if not self._counted:
            return float(sum(samples))
        return sum_count(self.loss.count if self.loss is not None else 0.0, self._groups.counts)

    def _agree_on_form(self, counted: bool | None) -> bool:
        """Whether loss_fn gives (sum, count): a host without samples learns it from the others."""
        forms = {form for form in _gather(counted, self._groups.counts) if form is not None}
        if len(forms) != 1:
            raise DisagreementError("loss_fn gives a mean on some hosts, (sum, count) on others")
        return bool(forms.pop())

    def _make_sum(self) -> GradientSum | None:
        """The sum over the parameters that got a gradient in the first step, on whichever host."""
        if self._groups.hosts is None:
            return None
        parameters = dict(self.stage.named_parameters())
        own = {name: parameter.grad.is_sparse for name, parameter in parameters.items() if parameter.grad is not None}
        sparse: dict[str, bool] = {}
        for found in _gather(own, self._groups.counts):
            sparse |= found
        return GradientSum(
            [(parameter, sparse[name]) for name, parameter in parameters.items() if name in sparse],
            self._groups.hosts,
        )


def _gather(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    if group is None:
        return [value]
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values
