"""What tensors become on the wire: as they are, in 16 bits, or in 8 bits with a scale for every row."""

import torch
from torch import Tensor

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}

# Bytes of a row's scale, a float32.
SCALE_BYTES = 4


def is_coded(codec: str, dtype: torch.dtype, axes: int, batch_axis: int) -> bool:
    """Whether a codec changes such tensors: floats of more than 16 bits, for int8 those with rows within a sample."""
    if codec == "fp32" or dtype not in (torch.float32, torch.float64):
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


def lifting(samples: int) -> float:
    """A power of two of at least `samples`: gradients of a mean over so many are about as large as those of one."""
    return float(1 << max(0, samples - 1).bit_length())
