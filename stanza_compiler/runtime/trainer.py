"""What the loop asks of a way to train."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Record:
    """One rank's share of a step: loss sum and count, bytes sent, seconds by phase."""

    loss_sum: float
    count: float
    bytes_sent: int
    seconds: dict[str, float]


class Trainer(Protocol):
    """One rank's part in training."""

    def start(self, items: Sequence[int]) -> None:
        """Agree with the other ranks on the form of what they exchange; `items` are those of the first step."""

    def step(self, number: int, items: Sequence[int], following: Sequence[int] = ()) -> Record:
        """Train on one global batch; steps count from 1.

        `following` are the items of the next step, which may be made ready while gradients travel.
        """

    def state(self) -> dict[str, Any] | None:
        """The trained weights under their original names on rank 0, None elsewhere; every rank has to call it."""
