"""Ops that arrange elements anew or say how many there are."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from stanza_compiler.onnx_import.builder import Builder
from stanza_compiler.onnx_import.rebatch import Rebatching
from stanza_compiler.onnx_import.values import (
    Known,
    Number,
    Traced,
    UnsupportedError,
    Value,
    array_of,
    axis_of,
    constant_integers,
    dtype_of,
    integers,
    number,
    plain_number,
    rank_of,
    settled,
    shape_of,
    sizes_of,
)


def view(b: Builder, x: Value, target: Sequence[Number]) -> Any:
    """The elements in another shape, of which one size may be -1; the batch is told by -1 where it can be."""
    own = _both(x)
    if b.rebatching is not None:
        target = _rebatched(b, x, target, b.rebatching)
    one, other = (_solved([_at(size, index) for size in target], math.prod(own[index])) for index in (0, 1))
    if [one, other] == own:
        return x
    if one is not None and other is not None:
        moving = [axis for axis, (size, twin) in enumerate(zip(one, other, strict=True)) if size != twin]
        target = [target[axis] if axis in moving else size for axis, size in enumerate(one)]
        if len(moving) == 1:
            target[moving[0]] = -1
    return b(torch.reshape, x, tuple(target))


def _both(x: Value) -> list[tuple[int, ...]]:
    samples = x.samples if isinstance(x, Traced) else (x.tensor, x.tensor) if isinstance(x, Known) else (x, x)
    return [tuple(sample.shape) for sample in samples]


def _at(size: Number, index: int) -> int:
    return int(size.samples[index]) if isinstance(size, Traced) else int(size)


def _solved(target: list[int], count: int) -> tuple[int, ...] | None:
    """The shape with its -1 filled in; None when it doesn't hold `count` elements."""
    known = math.prod(size for size in target if size != -1)
    if -1 in target and known and count % known == 0:
        target = [count // known if size == -1 else size for size in target]
    return tuple(target) if math.prod(target) == count and -1 not in target else None


def _rebatched(b: Builder, x: Value, target: Sequence[Number], rebatching: Rebatching) -> Sequence[Number]:
    """A shape that was written down for the file's own batch size, for any."""
    shape = shape_of(x)
    if shape.count(None) != 1 or any(isinstance(size, Traced) for size in target):
        return target
    stored, batch = rebatching.stored, b.batch()
    sizes = _both(x)[0]
    written = _solved([_at(size, 0) for size in target], math.prod(sizes) * stored // _at(batch, 0))
    if written is None:
        return target
    axis = rebatching.axis(shape, sizes[shape.index(None)] * stored // _at(batch, 0), written)
    if axis is None:
        return target
    factor = written[axis] // stored
    return [*written[:axis], batch if factor == 1 else b(operator.mul, batch, factor), *written[axis + 1 :]]


def _reshape(b: Builder, x: Value, shape: Value, *, allowzero: int = 0) -> Any:
    target = integers(shape)
    if isinstance(x, np.ndarray):
        return x.reshape(constant_integers(shape))
    if not allowzero:
        target = [b.size(x, axis) if isinstance(size, int) and size == 0 else size for axis, size in enumerate(target)]
    return view(b, x, target)


def _flatten(b: Builder, x: Value, *, axis: int = 1) -> Any:
    """Two axes, always."""
    rank = rank_of(x)
    split = axis % rank if axis < 0 else axis
    if split == 1:
        return x if rank == 2 else b(torch.flatten, x, 1) if rank > 1 else view(b, x, [*b.dims(x), 1])
    sizes = shape_of(x)
    before = [size for size in sizes[:split] if size is not None]
    after = [size for size in sizes[split:] if size is not None]
    if len(after) == rank - split:
        return view(b, x, [-1, math.prod(after)])
    if len(before) == split:
        return view(b, x, [math.prod(before), -1])
    raise UnsupportedError("flattens two axes that follow from the batch size")


def _shape(b: Builder, x: Value, *, start: int = 0, end: int | None = None) -> Any:
    return settled(array_of(b.dims(x)[start:end]), b.name)


def _size(b: Builder, x: Value) -> Any:
    return b.product(b.dims(x))


def _transpose(b: Builder, x: Value, *, perm: list[int] | None = None) -> Any:
    order = perm if perm is not None else list(range(rank_of(x)))[::-1]
    return x if order == sorted(order) else b(torch.permute, x, tuple(order))


def _axes(axes: Value | list[int] | None) -> list[int] | None:
    """Axes that were an attribute once and are an input now."""
    return axes if axes is None or isinstance(axes, list) else constant_integers(axes)


def _squeeze(b: Builder, x: Value, given: Value | None = None, *, axes: list[int] | None = None) -> Any:
    chosen = _axes(given) if axes is None else axes
    if chosen is None:
        chosen = [axis for axis, size in enumerate(shape_of(x)) if size == 1]
    chosen = [axis_of(x, axis) for axis in chosen]
    if isinstance(x, np.ndarray):
        return np.squeeze(x, tuple(chosen))
    if any(shape_of(x)[axis] != 1 for axis in chosen):
        raise ValueError("it squeezes an axis whose size is not 1")
    return b(torch.squeeze, x, tuple(chosen)) if len(chosen) != 1 else b(torch.squeeze, x, chosen[0])


def _unsqueeze(b: Builder, x: Value, given: Value | None = None, *, axes: list[int] | None = None) -> Any:
    """Axes count in the result."""
    chosen = (_axes(given) if axes is None else axes) or []
    rank = rank_of(x) + len(chosen)
    for axis in sorted(axis % rank for axis in chosen):
        x = np.expand_dims(x, axis) if isinstance(x, np.ndarray) else b(torch.unsqueeze, x, axis)
    return x


def _concat(b: Builder, *values: Value, axis: int = 1) -> Any:
    if any(isinstance(value, np.ndarray) for value in values):
        return np.concatenate([sizes_of(value) for value in values], axis)
    if len(values) == 1:
        return values[0]
    if b.rebatching is not None and b.rebatching.stored == 1:
        values = _widened(b, values, axis)
    return b(torch.cat, list(values), axis_of(values[0], axis))


def _widened(b: Builder, values: Sequence[Value], axis: int) -> tuple[Value, ...]:
    """What was stored for a batch of 1, such as a class token, for every sample."""
    shapes = [shape_of(value) for value in values]
    moving = [
        other
        for other in range(rank_of(values[0]))
        if other != axis_of(values[0], axis) and {shape[other] for shape in shapes} == {1, None}
    ]
    if len(moving) != 1:
        return tuple(values)
    return tuple(
        b("expand", value, [b.batch() if other == moving[0] else -1 for other in range(len(shape))])
        if shape[moving[0]] == 1
        else value
        for value, shape in zip(values, shapes, strict=True)
    )


def _split(
    b: Builder, x: Value, given: Value | None = None, *, axis: int = 0, split: list[int] | None = None, **options: int
) -> Any:
    """Equal parts unless sizes are given; the last one may be smaller."""
    parts = _axes(given) if split is None else split
    size = shape_of(x)[axis]
    if parts is None:
        count = options.get("num_outputs", len(b.outputs))
        if size is None:
            raise UnsupportedError("splits the batch")
        part = -(-size // count)
        parts = [part] * (size // part) + ([size % part] if size % part else [])
    if isinstance(x, np.ndarray):
        return list(np.split(x, np.cumsum(parts)[:-1].tolist(), axis))
    return b(torch.split, x, parts, axis_of(x, axis))


def _expand(b: Builder, x: Value, shape: Value) -> Any:
    """Broadcasting goes both ways: a 1 in the shape leaves the tensor's own size."""
    target, own = integers(shape), shape_of(x)
    added = max(len(target) - len(own), 0)
    target = [1] * (len(own) - len(target)) + target
    sizes = [
        wanted if size == 1 and not (isinstance(wanted, int) and wanted == 1) else -1
        for wanted, size in zip(target[added:], own, strict=True)
    ]
    if not added and all(isinstance(size, int) and size == -1 for size in sizes):
        return x
    whole = b.stacked(x) if isinstance(x, np.ndarray) else x
    return b("expand", whole, (*target[:added], *sizes))


def _tile(b: Builder, x: Value, repeats: Value) -> Any:
    counts = integers(repeats)
    is_same = all(isinstance(count, int) and count == 1 for count in counts)
    if isinstance(x, np.ndarray):
        return np.tile(x, constant_integers(repeats))
    return x if is_same else b(torch.tile, x, tuple(counts))


def _pad(
    b: Builder,
    x: Value,
    given: Value | None = None,
    filling: Value | None = None,
    axes: Value | None = None,
    *,
    mode: str = "constant",
    pads: list[int] | None = None,
    value: float = 0.0,
) -> Any:
    """Pads were an attribute before opset 11, (begins..., ends...) either way; torch counts axes from the last."""
    sizes = pads if given is None else constant_integers(given)
    if sizes is None:
        raise UnsupportedError("lacks its pads")
    chosen = list(range(rank_of(x))) if axes is None else [axis_of(x, axis) for axis in constant_integers(axes)]
    pairs = {axis: (sizes[index], sizes[index + len(chosen)]) for index, axis in enumerate(chosen)}
    first = min((axis for axis, pair in pairs.items() if any(pair)), default=None)
    if first is None:
        return x
    modes = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    if mode != "constant":  # torch pads the axes behind the first two
        if first < min(rank_of(x) - 1, 2):
            raise UnsupportedError(f"pads the batch or channels by mode {mode}")
        first = min(rank_of(x) - 1, 2)
    flat = [size for axis in range(rank_of(x) - 1, first - 1, -1) for size in pairs.get(axis, (0, 0))]
    if mode != "constant":
        return b(F.pad, x, flat, mode=modes[mode])
    content = value if filling is None else number(filling)
    return b(F.pad, x, flat, value=content) if content else b(F.pad, x, flat)


def _constant_of_shape(b: Builder, shape: Value, *, value: Known | None = None) -> Any:
    content = value.tensor if value is not None else torch.zeros(1)
    sizes = integers(shape)
    return b(torch.full, tuple(sizes), plain_number(content), dtype=content.dtype)


def _range(b: Builder, start: Value, limit: Value, delta: Value) -> Any:
    if isinstance(start, Known) and isinstance(limit, Known) and isinstance(delta, Known):
        return b(torch.arange, number(start), number(limit), number(delta), dtype=dtype_of(start))
    return b(torch.arange, *(integers(value)[0] for value in (start, limit, delta)))


def _depth_to_space(b: Builder, x: Value, *, blocksize: int, mode: str = "DCR") -> Any:
    if mode == "CRD":
        return b(F.pixel_shuffle, x, blocksize)
    _, channels, height, width = shape_of(x)
    if channels is None or height is None or width is None:
        raise UnsupportedError("moves the batch into space")
    inner = channels // blocksize**2
    parts = view(b, x, [-1, blocksize, blocksize, inner, height, width])
    moved = b(torch.permute, parts, (0, 3, 4, 1, 5, 2))
    return view(b, moved, [-1, inner, height * blocksize, width * blocksize])


def _space_to_depth(b: Builder, x: Value, *, blocksize: int) -> Any:
    _, channels, height, width = shape_of(x)
    if channels is None or height is None or width is None:
        raise UnsupportedError("moves the batch into channels")
    parts = view(b, x, [-1, channels, height // blocksize, blocksize, width // blocksize, blocksize])
    moved = b(torch.permute, parts, (0, 3, 5, 1, 2, 4))
    return view(b, moved, [-1, channels * blocksize**2, height // blocksize, width // blocksize])


OPS: dict[str, Callable[..., Any]] = {
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _size,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
