"""The few numbers that precede a part: gloo would silently accept a part of another size."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .errors import DisagreementError
from .wires import Message


def header_of(step: int, samples: int, values: Sequence[Tensor]) -> Tensor:
    """Step, samples, then the sizes of every tensor, as int64."""
    sizes = [size for value in values for size in value.shape]
    return torch.tensor([step, samples, *sizes], dtype=torch.int64)


def empty_header(message: Message) -> Tensor:
    """Room for a header of `message`."""
    return torch.empty(2 + sum(wire.axes for wire in message.wires), dtype=torch.int64)


def read_header(header: Tensor, message: Message, *, rank: int, step: int, samples: int) -> list[tuple[int, ...]]:
    """The shapes of the tensors that `rank` sends.

    Raises DisagreementError when it is at another step, or sends another number of samples than expected.
    """
    its_step, its_samples, *sizes = header.tolist()
    if (its_step, its_samples) != (step, samples):
        raise DisagreementError(
            f"rank {rank} sends {its_samples} samples of step {its_step}, expected are {samples} of step {step}"
        )
    shapes, position = [], 0
    for wire in message.wires:
        shapes.append(tuple(sizes[position : position + wire.axes]))
        position += wire.axes
    return shapes
