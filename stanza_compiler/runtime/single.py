"""One step of the whole model in one process."""

from collections.abc import Sequence
from typing import Any

import torch

from .batches import Batches
from .loss import measure
from .merge import on_cpu
from .optimizer import make_updater
from .program import Program
from .stopwatch import Stopwatch
from .trainer import Record


class SingleProcessTrainer:
    """The uncut model on the same global batches: what the other trainers are compared with."""

    def __init__(self, program: Program, *, batches: Batches, device: torch.device) -> None:
        self._hooks, self._batches = program.hooks, batches
        self._model: Any = program.build_model().to(device).train()
        self._updater = make_updater(program.hooks, self._model)

    def start(self, items: Sequence[int]) -> None:
        """Nothing to agree on."""

    def step(self, number: int, items: Sequence[int], following: Sequence[int] = ()) -> Record:
        """Train on one global batch."""
        watch = Stopwatch()
        batch = self._batches.load(number, items)
        with watch("conv_forward_s"):
            loss = measure(self._hooks, self._model.run(batch.inputs), batch.targets, samples=batch.samples)
        with watch("conv_backward_s"):
            if loss.total.requires_grad:
                torch.autograd.backward(loss.mean_over(loss.count))
        if self._updater is not None:
            with watch("optimizer_s"):
                self._updater.step()
        return Record(loss.value, loss.count, 0, watch.seconds)

    def state(self) -> dict[str, Any] | None:
        """The model's weights."""
        return on_cpu(self._model.state_dict())
