"""Ops that pick elements or put them somewhere."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from stanza_compiler.onnx_import.builder import Builder
from stanza_compiler.onnx_import.values import (
    Known,
    Traced,
    UnsupportedError,
    Value,
    axis_of,
    constant_integers,
    dtype_of,
    integers,
    is_fixed,
    number,
    rank_of,
    settled,
    shape_of,
    sizes_of,
)

_INTEGERS = (torch.int32, torch.int64)


def _at(axis: int, index: Any) -> Any:
    """An index of one axis, the axes before it whole."""
    return (*[slice(None)] * axis, index) if axis else index


def _gather(b: Builder, x: Value, indices: Value, *, axis: int = 0) -> Any:
    """Indices may be negative, as in torch's own indexing. An embedding is torch's layer."""
    axis = axis_of(x, axis)
    if isinstance(x, np.ndarray):
        return settled(np.asarray(np.take(x, np.array(sizes_of(indices), dtype=np.int64), axis), dtype=object), b.name)
    if isinstance(indices, np.ndarray):
        indices = b.stacked(indices)
    if isinstance(indices, Known) and not is_fixed(x) and rank_of(indices) == 0:
        return b(operator.getitem, x, _at(axis, int(indices.tensor.item())))
    home = b.home(weight=x)
    if isinstance(x, Known) and home and rank_of(x) == 2 and axis == 0 and isinstance(indices, Traced):
        layer = nn.Embedding(x.tensor.shape[0], x.tensor.shape[1], device="meta", dtype=x.tensor.dtype)
        return b.layer(home, layer, indices, weight=x)
    if isinstance(indices, Known) and indices.tensor.dtype != torch.int64:
        indices = Known(indices.tensor.long(), indices.name)
    return b(operator.getitem, x, _at(axis, indices))


def _gather_elements(b: Builder, x: Value, indices: Value, *, axis: int = 0) -> Any:
    return b(torch.gather, x, axis_of(x, axis), _positive(b, x, indices, axis))


def _positive(b: Builder, x: Value, indices: Value, axis: int) -> Value:
    """Indices counted from the front, as torch.gather and torch.scatter want them."""
    size = b.size(x, axis_of(x, axis))
    positive: Value = b(torch.where, b(operator.lt, indices, 0), b(operator.add, indices, size), indices)
    if dtype_of(positive) != torch.int64:
        positive = b("to", positive, torch.int64)
    return positive


def _coordinates(b: Builder, indices: Value) -> tuple[Any, ...]:
    """The last axis of GatherND's and ScatterND's indices as one index tensor for each leading axis."""
    count = shape_of(indices)[-1]
    assert count is not None
    return tuple(b(operator.getitem, indices, (..., axis)) for axis in range(count))


def _gather_nd(b: Builder, x: Value, indices: Value, *, batch_dims: int = 0) -> Any:
    if not batch_dims:
        return b(operator.getitem, x, _coordinates(b, indices))
    own = [size if size is not None else b.size(x, axis) for axis, size in enumerate(shape_of(x)[:batch_dims])]
    grids = []
    for axis, size in enumerate(own):
        shape = [1] * (rank_of(indices) - 1)
        shape[axis] = -1
        grids.append(b(torch.reshape, b(torch.arange, size), tuple(shape)))
    return b(operator.getitem, x, (*grids, *_coordinates(b, indices)))


def _scatter_nd(b: Builder, x: Value, indices: Value, updates: Value, *, reduction: str = "none") -> Any:
    if reduction not in ("none", "add"):
        raise UnsupportedError(f"reduces by {reduction}")
    return b(torch.index_put, x, _coordinates(b, indices), updates, accumulate=reduction == "add")


def _scatter_elements(
    b: Builder, x: Value, indices: Value, updates: Value, *, axis: int = 0, reduction: str = "none"
) -> Any:
    places = _positive(b, x, indices, axis)
    if reduction == "none":
        return b(torch.scatter, x, axis_of(x, axis), places, updates)
    names = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    return b(torch.scatter_reduce, x, axis_of(x, axis), places, updates, names[reduction])


def _slice(
    b: Builder,
    x: Value,
    first: Value | None = None,
    last: Value | None = None,
    chosen: Value | None = None,
    strides: Value | None = None,
    *,
    starts: list[int] | None = None,
    ends: list[int] | None = None,
    axes: list[int] | None = None,
) -> Any:
    """Everything but x was an attribute before opset 10. Ends beyond an axis stand for its end."""
    begins = integers(first) if first is not None else starts or []
    stops = integers(last) if last is not None else ends or []
    where = constant_integers(chosen) if chosen is not None else axes or list(range(len(begins)))
    steps = constant_integers(strides) if strides is not None else [1] * len(begins)
    index = [slice(None)] * rank_of(x)
    for axis, begin, stop, step in zip(where, begins, stops, steps, strict=True):
        axis = axis_of(x, axis)
        size = shape_of(x)[axis]
        if step < 0:
            x, begin, stop, step = _turned(b, x, axis, begin, stop, step)
        index[axis] = _part(size, begin, stop, step)
    if isinstance(x, np.ndarray):
        return settled(x[tuple(index)], b.name)
    while index and index[-1] == slice(None):
        index.pop()
    return b(operator.getitem, x, tuple(index) if len(index) > 1 else index[0]) if index else x


def _part(size: int | None, begin: Any, stop: Any, step: int) -> slice:
    """The slice with its bounds as short as they can be."""
    if size is not None and isinstance(begin, int) and isinstance(stop, int):
        begin, stop, step = slice(begin, stop, step).indices(size)
        stop = None if stop == size else stop
    elif isinstance(stop, int) and stop > 2**30:
        stop = None
    begin = None if isinstance(begin, int) and begin == 0 else begin
    return slice(begin, stop, None if step == 1 else step)


def _turned(b: Builder, x: Value, axis: int, begin: Any, stop: Any, step: int) -> tuple[Any, int, int, int]:
    """A slice that runs backwards as one that runs forwards on the flipped tensor."""
    size = shape_of(x)[axis]
    if size is None or isinstance(begin, Traced) or isinstance(stop, Traced):
        raise UnsupportedError("slices the batch backwards")
    begin = min(max(begin + size if begin < 0 else begin, 0), size - 1)  # not before the first, unlike Python's
    stop = min(max(stop + size if stop < 0 else stop, -1), size - 1)
    flipped = np.flip(x, axis) if isinstance(x, np.ndarray) else b(torch.flip, x, (axis,))
    return flipped, size - 1 - begin, size - 1 - stop, -step


def _trilu(b: Builder, x: Value, k: Value | None = None, *, upper: int = 1) -> Any:
    diagonal = number(k) if k is not None else 0
    return b(torch.triu if upper else torch.tril, x, diagonal)


def _one_hot(b: Builder, indices: Value, depth: Value, values: Value, *, axis: int = -1) -> Any:
    count = int(number(depth))
    place = axis % (rank_of(indices) + 1)
    shape = [1] * (rank_of(indices) + 1)
    shape[place] = count
    wanted = _positive_class(b, indices, count)
    classes = b(torch.reshape, b(torch.arange, count), tuple(shape))
    is_hit = b(operator.eq, b(torch.unsqueeze, wanted, place), classes)
    off, on = (b(operator.getitem, values, index) for index in (0, 1))
    return b(torch.where, is_hit, on, off)


def _positive_class(b: Builder, indices: Value, count: int) -> Value:
    positive: Value = b(torch.where, b(operator.lt, indices, 0), b(operator.add, indices, count), indices)
    return positive


def _non_zero(b: Builder, x: Value) -> Any:
    if not is_fixed(x) or isinstance(x, np.ndarray):
        raise UnsupportedError("gives a tensor whose size depends on the numbers in another")
    return b(lambda tensor: torch.nonzero(tensor).t().contiguous(), x)


def _grid_sample(
    b: Builder, x: Value, grid: Value, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Any:
    names = {"linear": "bilinear", "cubic": "bicubic"}
    return b(nn.functional.grid_sample, x, grid, names.get(mode, mode), padding_mode, align_corners=bool(align_corners))


OPS: dict[str, Callable[..., Any]] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "GridSample": _grid_sample,
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
    "Trilu": _trilu,
}
