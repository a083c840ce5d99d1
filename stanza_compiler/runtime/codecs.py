"""What tensors become on the wire: as they are, in 16 bits, or in 8 bits with a scale for every row."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BOUNDARY_DTYPES = ("fp32", "bf16", "fp16", "int8")
GRADIENT_CODECS = ("none", "bf16", "fp16", "powersgd")

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}

# What codecs narrow.
WIDE = (torch.float32, torch.float64)

# Bytes of a row's scale, a float32.
SCALE_BYTES = 4


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


def encode(codec: str, tensor: Tensor, factor: float = 1.0) -> Tensor:
    """The tensor times `factor` as it travels; int8 gives [..., L] as uint8 [..., L + 4], its scale behind each row.

    A power of two as `factor` lifts small gradients into float16's range and costs no precision.
    """
    lifted = tensor if factor == 1.0 else tensor * factor
    if codec in HALVES:
        limit = torch.finfo(HALVES[codec]).max
        return lifted.clamp(-limit, limit).to(HALVES[codec])
    scale = lifted.abs().amax(-1, keepdim=True).float() / 127
    rows = torch.where(scale > 0, lifted / scale, torch.zeros_like(lifted)).round().to(torch.int8)
    scales = scale.reshape(-1).view(torch.uint8).reshape(*scale.shape[:-1], SCALE_BYTES)
    return torch.cat([rows.view(torch.uint8), scales], -1)


def decode(codec: str, payload: Tensor, dtype: torch.dtype, factor: float = 1.0) -> Tensor:
    """What `encode` was given, as far as the codec keeps it."""
    if codec in HALVES:
        tensor = payload.to(dtype)
    else:
        rows, scales = payload[..., :-SCALE_BYTES], payload[..., -SCALE_BYTES:]
        scale = scales.reshape(-1).view(torch.float32).reshape(*payload.shape[:-1], 1)
        tensor = rows.contiguous().view(torch.int8).to(dtype) * scale.to(dtype)
    return tensor if factor == 1.0 else tensor / factor


def payload_shape(codec: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The sizes of what `encode` makes of a tensor of `shape`."""
    return tuple(shape) if codec in HALVES else (*shape[:-1], shape[-1] + SCALE_BYTES)


def payload_dtype(codec: str) -> torch.dtype:
    """The dtype of what `encode` makes."""
    return HALVES.get(codec, torch.uint8)


def lifting(samples: int) -> float:
    """A power of two of at least `samples`: gradients of a mean over so many are about as large as those of one."""
    return float(1 << max(0, samples - 1).bit_length())
