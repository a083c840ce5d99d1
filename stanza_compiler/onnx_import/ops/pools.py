"""Pools: the largest or mean element of windows."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from stanza_compiler.onnx_import.builder import Builder
from stanza_compiler.onnx_import.ops.convolutions import flat_padding, paddings, spatial, told
from stanza_compiler.onnx_import.values import UnsupportedError, Value, dtype_of, rank_of

_MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_MEAN = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_MAX_TO_ONE = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}
_MEAN_TO_ONE = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


def _max_pool(
    b: Builder,
    x: Value,
    *,
    kernel_shape: list[int],
    strides: list[int] | None = None,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    storage_order: int = 0,
) -> Any:
    if b.is_read(1):
        raise UnsupportedError("gives the indices of its maxima to others")
    sizes, kernel = spatial(x), tuple(kernel_shape)
    stride, dilation = tuple(strides or [1] * len(kernel)), tuple(dilations or [1] * len(kernel))
    _forbid_gaps(sizes, kernel, stride, auto_pad)
    before, behind = paddings(sizes, kernel, stride, dilation, pads=pads, auto_pad=auto_pad)
    if not _torch_pads(before, behind, kernel):
        least = float("-inf") if dtype_of(x).is_floating_point else torch.iinfo(dtype_of(x)).min
        reached = _reached(sizes, kernel, stride, dilation, before, behind) if ceil_mode else behind
        x = b(F.pad, x, flat_padding(before, reached), value=least)
        before, ceil_mode = (0,) * len(kernel), 0
    options = told(padding=(before, 0), dilation=(dilation, 1), ceil_mode=(bool(ceil_mode), False))
    return b(_MAX[len(kernel)], x, kernel, stride, **options)


def _forbid_gaps(sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], auto_pad: str) -> None:
    """Raise UnsupportedError for SAME windows with gaps between, whose place ONNX leaves open."""
    covered = (
        (-(-size // step) - 1) * step + width - size for size, width, step in zip(sizes, kernel, strides, strict=True)
    )
    if auto_pad.startswith("SAME") and min(covered) < -1:
        raise UnsupportedError("has windows narrower than their strides")


def _torch_pads(before: Sequence[int], behind: Sequence[int], kernel: Sequence[int]) -> bool:
    """Whether torch's pools can pad like this: alike on both sides, by at most half of the window."""
    return before == behind and all(0 <= pad <= width // 2 for pad, width in zip(before, kernel, strict=True))


def _reached(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    before: Sequence[int],
    behind: Sequence[int],
) -> tuple[int, ...]:
    """How far windows reach behind each axis if their number is rounded up; none begins in the padding there."""
    found = []
    for size, width, step, spread, left, right in zip(sizes, kernel, strides, dilations, before, behind, strict=True):
        extent = (width - 1) * spread + 1
        count = -(-(size + left + right - extent) // step) + 1
        if (count - 1) * step >= size + left:
            count -= 1
        found.append((count - 1) * step + extent - size - left)
    return tuple(found)


def _average_pool(
    b: Builder,
    x: Value,
    *,
    kernel_shape: list[int],
    strides: list[int] | None = None,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
) -> Any:
    """Windows over padding that torch can't give are means of the padded tensor by the share of what counts in them."""
    sizes, kernel = spatial(x), tuple(kernel_shape)
    stride, dilation = tuple(strides or [1] * len(kernel)), tuple(dilations or [1] * len(kernel))
    if any(spread != 1 for spread in dilation):
        raise UnsupportedError("has dilated windows")
    _forbid_gaps(sizes, kernel, stride, auto_pad)
    before, behind = paddings(sizes, kernel, stride, dilation, pads=pads, auto_pad=auto_pad)
    pool = _MEAN[len(kernel)]
    if _torch_pads(before, behind, kernel):
        counts = {} if count_include_pad or not any(before) else {"count_include_pad": False}
        return b(pool, x, kernel, stride, **told(padding=(before, 0), ceil_mode=(bool(ceil_mode), False)), **counts)
    reached = _reached(sizes, kernel, stride, dilation, before, behind) if ceil_mode else behind
    mean = b(pool, b(F.pad, x, flat_padding(before, reached)), kernel, stride)
    counted = b(torch.ones, (1, 1, *sizes), dtype=dtype_of(x))
    if count_include_pad:
        counted = b(F.pad, counted, flat_padding(before, behind), value=1.0)
        before, reached = (0,) * len(kernel), tuple(new - old for new, old in zip(reached, behind, strict=True))
        if not any(reached):
            return mean
    return b(operator.truediv, mean, b(pool, b(F.pad, counted, flat_padding(before, reached)), kernel, stride))


def _to_one(functions: dict[int, Callable[..., Any]]) -> Callable[..., Any]:
    def handler(b: Builder, x: Value) -> Any:
        return b(functions[len(spatial(x))], x, 1)

    return handler


def _global_lp_pool(b: Builder, x: Value, *, p: int = 2) -> Any:
    return b(torch.linalg.vector_norm, x, p, tuple(range(2, rank_of(x))), keepdim=True)


OPS: dict[str, Callable[..., Any]] = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": _to_one(_MEAN_TO_ONE),
    "GlobalLpPool": _global_lp_pool,
    "GlobalMaxPool": _to_one(_MAX_TO_ONE),
    "MaxPool": _max_pool,
}
