"""The few numbers that precede a part: gloo would silently accept a part of another size."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .errors import DisagreementError
from .wires import Message


def header_of(step: int, micro: int, samples: int, values: Sequence[Tensor]) -> Tensor:
    """Step, micro-batch, samples, then the sizes of every tensor, as int64."""
    sizes = [size for value in values for size in value.shape]
    return torch.tensor([step, micro, samples, *sizes], dtype=torch.int64)


def empty_header(message: Message) -> Tensor:
    """Room for a header of `message`."""
    return torch.empty(3 + sum(wire.axes for wire in message.wires), dtype=torch.int64)


def read_header(
    header: Tensor, message: Message, *, rank: int, step: int, micro: int, samples: int
) -> list[tuple[int, ...]]:
    """The shapes of the tensors that `rank` sends.

    Raises DisagreementError when it is at another step or micro-batch, or sends another number of samples than
    expected.
    """
    its_step, its_micro, its_samples, *sizes = header.tolist()
    if (its_step, its_micro, its_samples) != (step, micro, samples):
        where, its_where = (
            f"step {number}" + (f", micro-batch {part}" if micro or its_micro else "")
            for number, part in ((step, micro), (its_step, its_micro))
        )
        raise DisagreementError(
            f"rank {rank} sends {its_samples} samples of {its_where}, expected are {samples} of {where}"
        )
    shapes, position = [], 0
    for wire in message.wires:
        shapes.append(tuple(sizes[position : position + wire.axes]))
        position += wire.axes
    return shapes
