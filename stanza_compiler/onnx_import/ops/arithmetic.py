"""Ops of two or more tensors element by element, also on sizes."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from stanza_compiler.onnx_import.builder import Builder
from stanza_compiler.onnx_import.values import (
    Known,
    Traced,
    UnsupportedError,
    Value,
    dtype_of,
    is_fixed,
    rank_of,
    settled,
    sizes_of,
)

Handler = Callable[..., Any]


def _is_size(*values: Value) -> bool:
    """Whether these are sizes alone, of which one follows from the batch."""
    return any(isinstance(value, np.ndarray) for value in values) and not any(
        isinstance(value, Traced) for value in values
    )


def on_sizes(b: Builder, function: Callable[..., Any], *values: Value) -> Known | np.ndarray[Any, Any]:
    """`function` of whole numbers element by element, each call of it with a size becoming a step."""

    result = np.frompyfunc(lambda *items: b(function, *items), len(values), 1)(*map(sizes_of, values))
    return settled(np.asarray(result, dtype=object), b.name)


def _binary(function: Callable[..., Any]) -> Handler:
    def handler(b: Builder, x: Value, y: Value, *, broadcast: int = 0, axis: int | None = None) -> Any:
        """Opset 6 said when to broadcast, and from which axis."""
        if axis is not None:
            raise UnsupportedError("broadcasts from an axis in the middle")
        if _is_size(x, y):
            return on_sizes(b, function, x, y)
        return b(function, b.operand(x, y), b.operand(y, x))

    return handler


def _comparison(function: Callable[..., Any]) -> Handler:
    def handler(b: Builder, x: Value, y: Value) -> Any:
        if not _is_size(x, y):
            return b(function, b.operand(x, y), b.operand(y, x))
        result = on_sizes(b, lambda one, other: int(function(one, other)), x, y)
        if not isinstance(result, Known):
            raise UnsupportedError("decides by the batch size")
        return Known(result.tensor.bool(), "")

    return handler


def _div(b: Builder, x: Value, y: Value, *, broadcast: int = 0) -> Any:
    if _is_size(x, y):
        return on_sizes(b, operator.floordiv, x, y)  # sizes have no sign
    if dtype_of(x).is_floating_point or dtype_of(x).is_complex:
        return b(operator.truediv, b.operand(x, y), b.operand(y, x))
    return b(torch.div, x, b.operand(y, x), rounding_mode="trunc")


def _mod(b: Builder, x: Value, y: Value, *, fmod: int = 0) -> Any:
    if _is_size(x, y):
        return on_sizes(b, operator.mod, x, y)
    if fmod:
        return b(torch.fmod, x, b.operand(y, x))
    return b(operator.mod, b.operand(x, y), b.operand(y, x))


def _pow(b: Builder, x: Value, y: Value) -> Any:
    """The result has the type of the base."""
    power = b(operator.pow, b.operand(x, y), b.operand(y, x))
    return power if dtype_of(power) == dtype_of(x) else b("to", power, dtype_of(x))


def _chain(function: Callable[..., Any]) -> Handler:
    """A function of two tensors for any number of them."""

    def handler(b: Builder, *values: Value) -> Any:
        result = values[0]
        for value in values[1:]:
            result = b(function, _whole(b, result), _whole(b, value))
        return result

    return handler


def _whole(b: Builder, value: Value) -> Value:
    return b.stacked(value) if isinstance(value, np.ndarray) else value


def _extreme(function: Callable[..., Any], side: str) -> Handler:
    """Min and Max; a constant with one element is a bound."""

    def handler(b: Builder, *values: Value) -> Any:
        first, *rest = sorted((_whole(b, value) for value in values), key=is_fixed)
        result: Value = first
        for value in rest:
            limit = b.operand(value, result)
            is_number = not isinstance(limit, Known | Traced)
            result = b(torch.clamp, result, **{side: limit}) if is_number else b(function, result, value)
        return result

    return handler


def _mean(b: Builder, *values: Value) -> Any:
    total = _chain(operator.add)(b, *values)
    return total if len(values) == 1 else b(operator.truediv, total, len(values))


def _where(b: Builder, condition: Value, x: Value, y: Value) -> Any:
    if isinstance(condition, Known) and _is_size(x, y):
        return settled(np.where(condition.tensor.numpy(), sizes_of(x), sizes_of(y)), b.name)
    x, y = _whole(b, x), _whole(b, y)
    one, other = b.operand(x, condition), b.operand(y, condition)
    if not isinstance(one, Known | Traced) and not isinstance(other, Known | Traced):
        other = y  # whose type is the result's
    return b(torch.where, condition, one, other)


def _clip(b: Builder, x: Value, low: Value | None = None, high: Value | None = None, **bounds: float) -> Any:
    """Bounds were attributes before opset 11."""
    limits: dict[str, Any] = {side: bounds.pop(side) for side in ("min", "max") if side in bounds}
    if bounds:
        raise UnsupportedError(f"has the unknown attribute {next(iter(bounds))}")
    limits |= {side: b.operand(value, x) for side, value in (("min", low), ("max", high)) if value is not None}
    return b(torch.clamp, x, **limits) if limits else x


def _prelu(b: Builder, x: Value, slope: Value) -> Any:
    """Slopes were one a channel before opset 7 and broadcast since."""
    if b.opset < 7 and rank_of(slope) == 1:
        slope = b(torch.reshape, slope, (-1, *[1] * (rank_of(x) - 2)))
    negative = b(operator.mul, x, slope)
    return b(torch.where, b(operator.gt, x, 0), x, negative)


def _bit_shift(b: Builder, x: Value, y: Value, *, direction: str) -> Any:
    return b(torch.bitwise_left_shift if direction == "LEFT" else torch.bitwise_right_shift, x, b.operand(y, x))


OPS: dict[str, Handler] = {
    "Add": _binary(operator.add),
    "Sub": _binary(operator.sub),
    "Mul": _binary(operator.mul),
    "Div": _div,
    "Mod": _mod,
    "Pow": _pow,
    "Sum": _chain(operator.add),
    "Mean": _mean,
    "Min": _extreme(torch.minimum, "max"),
    "Max": _extreme(torch.maximum, "min"),
    "Equal": _comparison(operator.eq),
    "Less": _comparison(operator.lt),
    "LessOrEqual": _comparison(operator.le),
    "Greater": _comparison(operator.gt),
    "GreaterOrEqual": _comparison(operator.ge),
    "And": _chain(torch.logical_and),
    "Or": _chain(torch.logical_or),
    "Xor": _chain(torch.logical_xor),
    "Not": lambda b, x: b(torch.logical_not, x),
    "BitwiseAnd": _chain(operator.and_),
    "BitwiseOr": _chain(operator.or_),
    "BitwiseXor": _chain(operator.xor),
    "BitShift": _bit_shift,
    "Where": _where,
    "Clip": _clip,
    "PRelu": _prelu,
}
