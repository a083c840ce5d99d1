"""Normalisations."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from stanza_compiler.onnx_import.builder import Builder
from stanza_compiler.onnx_import.values import (
    Known,
    UnsupportedError,
    Value,
    axis_of,
    constant,
    rank_of,
    shape_of,
    shortest,
)

_BATCH_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def _batch_norm(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value,
    mean: Value,
    variance: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    is_test: int = 0,
    spatial: int = 1,
) -> Any:
    """A torch layer: the batch's statistics while the module trains, else the running ones, as torch means it.

    ONNX weighs the old statistics by `momentum`, torch the new ones.
    """
    if not spatial:
        raise UnsupportedError("normalises every element by itself")
    if any(b.is_read(output) for output in range(1, 5)):
        raise UnsupportedError("gives its statistics to others")
    if not 2 <= rank_of(x) <= 5:
        raise UnsupportedError(f"takes a tensor of {rank_of(x)} axes")
    home = b.home(weight=weight, bias=bias, running_mean=mean, running_var=variance)
    weight, bias = (value if isinstance(value, Known) else Known(constant(value), "") for value in (weight, bias))
    layer = _BATCH_NORMS[rank_of(x)](
        len(constant(weight)),
        eps=epsilon,
        momentum=shortest(1 - momentum),
        device="meta",
        dtype=constant(weight).dtype,
    )
    statistics = {"running_mean": mean, "running_var": variance, "num_batches_tracked": Known(torch.tensor(0), "")}
    return b.layer(home, layer, x, weight=weight, bias=bias, **statistics)


def _layer_norm(
    b: Builder,
    x: Value,
    scale: Value,
    bias: Value | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Any:
    if b.is_read(1) or b.is_read(2):
        raise UnsupportedError("gives its statistics to others")
    shape = _normalised(x, axis)
    fits = all(shape_of(value) == shape for value in (scale, bias) if value is not None)
    if not fits:
        plain = b(F.layer_norm, x, shape, eps=epsilon)
        scaled = b(operator.mul, plain, b.operand(scale, plain))
        return scaled if bias is None else b(operator.add, scaled, b.operand(bias, scaled))
    home = b.home(weight=scale, bias=bias)
    if home is None or not isinstance(scale, Known):
        options = {} if epsilon == 1e-5 else {"eps": epsilon}
        return b(F.layer_norm, x, shape, scale, *([] if bias is None else [bias]), **options)
    layer = nn.LayerNorm(shape, eps=epsilon, bias=bias is not None, device="meta", dtype=scale.tensor.dtype)
    return b.layer(home, layer, x, weight=scale, bias=bias)


def _normalised(x: Value, axis: int) -> tuple[int, ...]:
    shape = shape_of(x)[axis_of(x, axis) :]
    found = tuple(size for size in shape if size is not None)
    if len(found) != len(shape):
        raise UnsupportedError("normalises over the batch")
    return found


def _rms_norm(b: Builder, x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    shape = _normalised(x, axis)
    if shape_of(scale) == shape:
        return b(F.rms_norm, x, shape, scale, eps=epsilon)
    plain = b(F.rms_norm, x, shape, eps=epsilon)
    return b(operator.mul, plain, b.operand(scale, plain))


def _group_norm(
    b: Builder, x: Value, scale: Value, bias: Value, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    """Scale and bias had one element a group before opset 21, one a channel since."""
    channels = shape_of(x)[1]
    assert channels is not None
    if b.opset < 21 and channels != num_groups:
        scale, bias = (b(torch.repeat_interleave, value, channels // num_groups) for value in (scale, bias))
    return b(F.group_norm, x, num_groups, scale, bias, eps=epsilon)


def _instance_norm(b: Builder, x: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5) -> Any:
    return b(F.instance_norm, x, weight=scale, bias=bias, eps=epsilon)


def _local_response_norm(
    b: Builder, x: Value, *, size: int, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0
) -> Any:
    if size % 2 == 0:  # ONNX and torch place an even window differently
        raise UnsupportedError("has windows of an even size")
    return b(F.local_response_norm, x, size, alpha, beta, bias)


def _lp_normalization(b: Builder, x: Value, *, axis: int = -1, p: int = 2) -> Any:
    return b(F.normalize, x, p=float(p), dim=axis)


def _mean_variance(b: Builder, x: Value, *, axes: list[int] | None = None) -> Any:
    """1e-9 is what the specification adds to the deviation."""
    chosen = tuple(axes or (0, 2, 3))
    centred = b(operator.sub, x, b(torch.mean, x, chosen, keepdim=True))
    variance = b(torch.mean, b(operator.mul, centred, centred), chosen, keepdim=True)
    return b(operator.truediv, centred, b(operator.add, b(torch.sqrt, variance), 1e-9))


OPS: dict[str, Callable[..., Any]] = {
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _local_response_norm,
    "LayerNormalization": _layer_norm,
    "LpNormalization": _lp_normalization,
    "MeanVarianceNormalization": _mean_variance,
    "RMSNormalization": _rms_norm,
}
