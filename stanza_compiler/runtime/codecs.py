"""What tensors become on the wire: as they are, in 16 bits, or in 8 bits with a scale for every row."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BOUNDARY_DTYPES = ("fp32", "bf16", "fp16", "int8")
GRADIENT_CODECS = ("none", "bf16", "fp16", "powersgd")

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}

# What codecs narrow.
WIDE = (torch.float32, torch.float64)

# Bytes of a row's scale, a float32, and numbers that a row has at least where a sample has so many.
SCALE_BYTES = 4
ROW = 64


@dataclass(frozen=True, slots=True)
class Codecs:
    """`boundary`: fp32 (as they are), bf16, fp16 or int8 for tensors at the cut; `gradient`: none, bf16 or fp16."""

    boundary: str = "fp32"
    gradient: str = "none"

    def summed_in(self, dtype: torch.dtype) -> torch.dtype:
        """What gradients of this dtype are summed in."""
        return HALVES.get(self.gradient, dtype) if dtype in WIDE else dtype


PLAIN = Codecs()


def is_coded(codec: str, dtype: torch.dtype, axes: int, batch_axis: int) -> bool:
    """Whether a codec changes such tensors: floats of more than 16 bits, for int8 those with rows within a sample."""
    if codec == "fp32" or dtype not in WIDE:
        return False
    return codec in HALVES or (axes >= 2 and batch_axis != axes - 1)


def row_axes(shape: Sequence[int], batch_axis: int) -> int:
    """How many trailing axes make a row of int8: enough for ROW numbers, but none before or at the batch axis."""
    count = 1
    while math.prod(shape[-count:]) < ROW and count < len(shape) - 1 - batch_axis:
        count += 1
    return count


def encode(codec: str, tensor: Tensor, batch_axis: int = 0, factor: float = 1.0) -> Tensor:
    """The tensor times `factor` as it travels; int8 gives [..., L] for rows of L as uint8 [..., L + 4], scales behind.

    A power of two as `factor` lifts small gradients into float16's range and costs no precision.
    """
    lifted = tensor if factor == 1.0 else tensor * factor
    if codec in HALVES:
        limit = torch.finfo(HALVES[codec]).max
        return lifted.clamp(-limit, limit).to(HALVES[codec])
    shape = payload_shape(codec, tensor.shape, batch_axis)
    values = lifted.reshape(*shape[:-1], shape[-1] - SCALE_BYTES)
    scale = values.abs().amax(-1, keepdim=True).float() / 127
    rows = torch.where(scale > 0, values / scale, torch.zeros_like(values)).round().to(torch.int8)
    scales = scale.reshape(-1).view(torch.uint8).reshape(*shape[:-1], SCALE_BYTES)
    return torch.cat([rows.view(torch.uint8), scales], -1)


def decode(codec: str, payload: Tensor, dtype: torch.dtype, shape: Sequence[int], factor: float = 1.0) -> Tensor:
    """What `encode` was given, a tensor of `shape`, as far as the codec keeps it."""
    if codec in HALVES:
        tensor = payload.to(dtype)
    else:
        rows, scales = payload[..., :-SCALE_BYTES], payload[..., -SCALE_BYTES:]
        scales = scales.clone(memory_format=torch.contiguous_format)  # a view as floats must start at a multiple of 4
        scale = scales.reshape(-1).view(torch.float32).reshape(*payload.shape[:-1], 1)
        tensor = (rows.contiguous().view(torch.int8).to(dtype) * scale.to(dtype)).reshape(shape)
    return tensor if factor == 1.0 else tensor / factor


def payload_shape(codec: str, shape: Sequence[int], batch_axis: int) -> tuple[int, ...]:
    """The sizes of what `encode` makes of a tensor of `shape`."""
    if codec in HALVES:
        return tuple(shape)
    count = row_axes(shape, batch_axis)
    return (*shape[:-count], math.prod(shape[-count:]) + SCALE_BYTES)


def payload_dtype(codec: str) -> torch.dtype:
    """The dtype of what `encode` makes."""
    return HALVES.get(codec, torch.uint8)


def lifting(samples: int) -> float:
    """A power of two of at least `samples`: gradients of a mean over so many are about as large as those of one."""
    return float(1 << max(0, samples - 1).bit_length())
