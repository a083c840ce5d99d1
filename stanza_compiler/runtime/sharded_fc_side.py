"""What a host of a sharded FC stage does in a step."""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add

import torch
from torch import Tensor

from .assembly import Assembly, Delivery
from .columns import ColumnLinear, Masks
from .late_gradients import LateGradients
from .loss import Loss, measure
from .optimizer import make_updater
from .peers import Peers
from .program import Program
from .receiver import Receiver
from .routes import Route
from .seeds import seed_from
from .sharded_scores import ShardedScores
from .sharded_weights import load_columns
from .standin import REHEARSAL
from .stopwatch import Stopwatch


class ShardedFcSide:
    """This host's columns of every layer, on the parts of all CONV ranks.

    The hosts run the same chain on the same samples and have the same loss; only gathers between layers and the sums
    within cross-entropy make them wait for each other. Each has a part of the input's gradient: the CONV ranks add.
    """

    receiver: Receiver

    def __init__(
        self,
        program: Program,
        columns: Mapping[str, int],
        peers: Peers,
        *,
        seed: int,
        device: torch.device,
    ) -> None:
        """`columns` are the split Linears in the order of the chain, each with its width."""
        self.stage = load_columns(program, columns, peers, device)
        self.loss: Loss | None = None
        self.mask_stream = 0
        self._hooks, self._peers, self._seed, self._device = program.hooks, peers, seed, device
        self._classes = list(columns.values())[-1]
        self._updater = make_updater(program.hooks, self.stage)
        self._late = LateGradients(self.stage, rate=self._rate)
        self._deliveries: list[Delivery] = []

    def receive(self, step: int, samples: Sequence[int], watch: Stopwatch) -> None:
        """Wait for the parts of all CONV ranks."""
        own = {rank: count for rank, count in enumerate(samples) if count}
        assembly = Assembly(self.receiver.message, own, self._device)
        self.receiver.receive(step, own, of=sum(samples), slots=assembly.slots)
        self._deliveries = assembly.join()
        watch.add("up_s", self.receiver.receive_s)
        if step != REHEARSAL:
            self.receiver.expect(assembly.leaves)

    def forward(self, route: Route, step: int, watch: Stopwatch) -> str:
        """Run the chain and take the loss; give the function of loss_fn that took all scores, if one did."""
        losses, gathered_by = [], ""
        masks = Masks(seed_from(self._seed, self.mask_stream, step), self._device)
        hooks = [
            module.register_forward_hook(masks.follow)
            for module in self.stage.modules()
            if isinstance(module, ColumnLinear)
        ]
        with watch("fc_forward_s"):
            for delivery in self._deliveries:
                masks.begin()
                with masks, self._late.forward():
                    method = getattr(self.stage, route.segment.method)
                    local = method(*(delivery.tensors[name] for name in route.segment.takes))
                scores = ShardedScores.of(local, self._classes, self._peers)
                with torch.random.fork_rng():  # all hosts take the same loss
                    torch.manual_seed(seed_from(self._seed, self.mask_stream, step, 1))
                    samples = sum(delivery.samples.values())
                    losses.append(measure(self._hooks, scores, delivery.targets, samples=samples))
                gathered_by = gathered_by or scores.uses.gathered_by
        for hook in hooks:
            hook.remove()
        self.loss = reduce(add, losses)
        return gathered_by

    def backward(self, watch: Stopwatch) -> None:
        """Propagate the global mean; parts of the input's gradient leave before the layers' own are computed."""
        assert self.loss is not None
        with watch("fc_backward_s"):
            mean = self.loss.mean_over(self.loss.count)
            if mean.requires_grad:
                self._late.backward([mean], [None])
            self.receiver.return_rest()
        if self.receiver.started_at is not None and self.receiver.returned_at is not None:
            watch.add("turnaround_s", self.receiver.returned_at - self.receiver.started_at)

    def finish(self, watch: Stopwatch) -> int:
        """Compute what backward has left, update; return the bytes sent for gradients and to the other hosts."""
        sent = self._finish_transfers()
        with watch("fc_late_s"):
            self._late.compute()
        if self._updater is not None:
            with watch("optimizer_s"):
                self._updater.step()
        return sent

    def finish_rehearsal(self) -> None:
        """Forget the rehearsed step."""
        self._finish_transfers()

    def _rate(self, parameter: Tensor) -> float | None:
        return self._updater.rate(parameter) if self._updater is not None else None

    def _finish_transfers(self) -> int:
        self._deliveries = []
        sent = self.receiver.finish() + self._peers.bytes_sent
        self._peers.bytes_sent = 0
        return sent
