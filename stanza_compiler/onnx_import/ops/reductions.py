"""Ops that reduce axes, or accumulate along one."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from stanza_compiler.onnx_import.builder import Builder
from stanza_compiler.onnx_import.values import (
    UnsupportedError,
    Value,
    array_of,
    axis_of,
    constant_integers,
    dtype_of,
    number,
    rank_of,
    settled,
)

Reduction = Callable[[Builder, Value, tuple[int, ...], bool], Any]


def _reduce(reduction: Reduction) -> Callable[..., Any]:
    """Axes were an attribute once and are an input now; without any, all are reduced, or by request none."""

    def handler(
        b: Builder,
        x: Value,
        given: Value | None = None,
        *,
        axes: list[int] | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Any:
        chosen = constant_integers(given) if given is not None else axes or []
        if not chosen and noop_with_empty_axes:
            return x
        found = tuple(sorted(axis_of(x, axis) for axis in chosen)) or tuple(range(rank_of(x)))
        if isinstance(x, np.ndarray):
            raise UnsupportedError("reduces sizes that follow from the batch")
        return reduction(b, x, found, bool(keepdims))

    return handler


def _keeping(keepdim: bool) -> dict[str, bool]:
    return {"keepdim": True} if keepdim else {}


def _by(function: Callable[..., Any]) -> Reduction:
    return lambda b, x, axes, keepdim: b(function, x, axes, **_keeping(keepdim))


def _mean(b: Builder, x: Value, axes: tuple[int, ...], keepdim: bool) -> Any:
    if dtype_of(x).is_floating_point:
        return b(torch.mean, x, axes, **_keeping(keepdim))
    count = b.product(b.size(x, axis) for axis in axes)
    return b(torch.div, _sum(b, x, axes, keepdim), count, rounding_mode="trunc")


def _sum(b: Builder, x: Value, axes: tuple[int, ...], keepdim: bool) -> Any:
    """In the type of the tensor; torch would widen whole numbers."""
    own = {} if dtype_of(x).is_floating_point else {"dtype": dtype_of(x)}
    return b(torch.sum, x, axes, **_keeping(keepdim), **own)


def _prod(b: Builder, x: Value, axes: tuple[int, ...], keepdim: bool) -> Any:
    own = {} if dtype_of(x).is_floating_point else {"dtype": dtype_of(x)}
    for axis in reversed(axes):
        x = b(torch.prod, x, axis, **_keeping(keepdim), **own)
    return x


def _norm(order: int) -> Reduction:
    return lambda b, x, axes, keepdim: b(torch.linalg.vector_norm, x, order, axes, **_keeping(keepdim))


def _log_sum(b: Builder, x: Value, axes: tuple[int, ...], keepdim: bool) -> Any:
    return b(torch.log, _sum(b, x, axes, keepdim))


def _sum_square(b: Builder, x: Value, axes: tuple[int, ...], keepdim: bool) -> Any:
    return _sum(b, b(operator.mul, x, x), axes, keepdim)


def _arg(function: Callable[..., Any]) -> Callable[..., Any]:
    def handler(b: Builder, x: Value, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
        axis = axis_of(x, axis)
        if not select_last_index:
            return b(function, x, axis, **_keeping(bool(keepdims)))
        from_behind = b(function, b(torch.flip, x, (axis,)), axis, **_keeping(bool(keepdims)))
        size = b.size(x, axis)
        last = b(operator.sub, size, 1)
        return b(operator.sub, last, from_behind)

    return handler


def _top_k(
    b: Builder, x: Value, count: Value | None = None, *, axis: int = -1, largest: int = 1, k: int = 0, **options: int
) -> Any:
    """Of equal elements the first come first, which torch.topk doesn't promise.

    The count was an attribute before opset 10. Sorted results are allowed where any order is.
    """
    wanted = int(number(count)) if count is not None else k
    axis = axis_of(x, axis)
    found = b(torch.sort, x, stable=True, dim=axis, descending=bool(largest))
    return [b(torch.narrow, each, axis, 0, wanted) for each in found]


def _cum_sum(b: Builder, x: Value, axis: Value, *, exclusive: int = 0, reverse: int = 0) -> Any:
    along = axis_of(x, int(number(axis)))
    if reverse:
        x = b(torch.flip, x, (along,))
    own = {} if dtype_of(x).is_floating_point else {"dtype": dtype_of(x)}
    total = b(torch.cumsum, x, along, **own)
    if exclusive:
        total = b(operator.sub, total, x)
    return b(torch.flip, total, (along,)) if reverse else total


def _reduce_prod(b: Builder, x: Value, given: Value | None = None, **options: Any) -> Any:
    """Of sizes too: how many elements there are."""
    if not isinstance(x, np.ndarray) or x.ndim != 1:
        return _reduce(_prod)(b, x, given, **options)
    total = b.product(x)
    return settled(array_of([total]), b.name) if options.get("keepdims", 1) else total


OPS: dict[str, Callable[..., Any]] = {
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
    "CumSum": _cum_sum,
    "ReduceL1": _reduce(_norm(1)),
    "ReduceL2": _reduce(_norm(2)),
    "ReduceLogSum": _reduce(_log_sum),
    "ReduceLogSumExp": _reduce(_by(torch.logsumexp)),
    "ReduceMax": _reduce(_by(torch.amax)),
    "ReduceMean": _reduce(_mean),
    "ReduceMin": _reduce(_by(torch.amin)),
    "ReduceProd": _reduce_prod,
    "ReduceSum": _reduce(_sum),
    "ReduceSumSquare": _reduce(_sum_square),
    "TopK": _top_k,
}
