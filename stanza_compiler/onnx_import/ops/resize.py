"""Interpolation of pictures."""

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from stanza_compiler.onnx_import.builder import Builder
from stanza_compiler.onnx_import.ops.convolutions import spatial
from stanza_compiler.onnx_import.values import (
    Known,
    UnsupportedError,
    Value,
    axis_of,
    constant,
    constant_integers,
    rank_of,
)

_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def _resize(
    b: Builder,
    x: Value,
    roi: Value | None = None,
    scales: Value | None = None,
    sizes: Value | None = None,
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75,
    antialias: int = 0,
    axes: list[int] | None = None,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
) -> Any:
    """Opset 10 had no roi and scaled in the asymmetric way."""
    if b.opset == 10:
        scales, coordinate_transformation_mode, nearest_mode = roi, "asymmetric", "floor"
    if keep_aspect_ratio_policy != "stretch" or exclude_outside:
        raise UnsupportedError("keeps the aspect ratio or leaves out what lies outside")
    own = spatial(x)
    factors, target = _sizes(x, own, scales, sizes, axes)
    if mode == "nearest":
        return _nearest(b, x, own, factors, target, coordinate_transformation_mode, nearest_mode)
    if coordinate_transformation_mode not in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        raise UnsupportedError(f"has coordinates of the kind {coordinate_transformation_mode}")
    if coordinate_transformation_mode == "pytorch_half_pixel" and 1 in target:
        raise UnsupportedError("makes a single element of an axis in a way torch no longer knows")
    if antialias and any(new < size for new, size in zip(target, own, strict=True)):
        raise UnsupportedError("smooths what it shrinks, which torch does differently")
    if mode == "cubic" and cubic_coeff_a != -0.75:
        raise UnsupportedError(f"has the cubic coefficient {cubic_coeff_a}")
    names = {"linear": _LINEAR[len(own)], "cubic": "bicubic"}
    corners = coordinate_transformation_mode == "align_corners"
    options: dict[str, Any] = {"align_corners": True} if corners else {}
    is_whole = all(math.isclose(new, size * factor) for new, size, factor in zip(target, own, factors, strict=True))
    if corners and not is_whole:
        raise UnsupportedError("aligns corners at sizes that are no whole numbers")
    if scales is not None and constant(scales).numel() and not corners:
        options |= {"scale_factor": tuple(factors)}
    else:
        options |= {"size": target}
    return b(F.interpolate, x, mode=names[mode], **options)


def _sizes(
    x: Value, own: tuple[int, ...], scales: Value | None, sizes: Value | None, axes: list[int] | None
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """The factor and the new size of each spatial axis."""
    chosen = list(range(rank_of(x))) if axes is None else [axis_of(x, axis) for axis in axes]
    if scales is not None and isinstance(scales, Known) and scales.tensor.numel():
        by_axis = dict(zip(chosen, constant(scales).tolist(), strict=True))
        if any(by_axis.get(axis, 1.0) != 1.0 for axis in (0, 1)):
            raise UnsupportedError("resizes the batch or the channels")
        factors = tuple(by_axis.get(axis + 2, 1.0) for axis in range(len(own)))
        return factors, tuple(math.floor(size * factor) for size, factor in zip(own, factors, strict=True))
    if sizes is None:
        raise UnsupportedError("lacks scales and sizes")
    wanted = [size if isinstance(size, int) else None for size in _plain(sizes)]
    target = []
    for axis, size in enumerate(own, start=2):
        new = wanted[chosen.index(axis)] if axis in chosen else size
        if new is None:
            raise UnsupportedError("resizes by the batch size")
        target.append(new)
    return tuple(new / size for new, size in zip(target, own, strict=True)), tuple(target)


def _plain(sizes: Value) -> list[Any]:
    return constant_integers(sizes) if isinstance(sizes, Known) else list(getattr(sizes, "flat", []))


def _nearest(
    b: Builder,
    x: Value,
    own: tuple[int, ...],
    factors: tuple[float, ...],
    target: tuple[int, ...],
    coordinates: str,
    rounding: str,
) -> Any:
    """torch's interpolation where it picks the same elements, else one index a axis."""
    picks = [
        [_pick(place, factor, size, new, coordinates, rounding) for place in range(new)]
        for size, new, factor in zip(own, target, factors, strict=True)
    ]
    for mode in ("nearest", "nearest-exact"):
        if all(_torch_picks(size, new, mode) == pick for size, new, pick in zip(own, target, picks, strict=True)):
            return b(F.interpolate, x, size=target, mode=mode)
    for axis, pick in enumerate(picks, start=2):
        if pick != list(range(own[axis - 2])):
            index = (*[slice(None)] * axis, Known(torch.tensor(pick), f"{b.name}_{axis}"))
            x = b(operator.getitem, x, index)
    return x


def _torch_picks(size: int, new: int, mode: str) -> list[int]:
    line = torch.arange(size, dtype=torch.float32)[None, None]
    return [int(item) for item in F.interpolate(line, size=new, mode=mode)[0, 0].tolist()]


def _pick(place: int, factor: float, size: int, new: int, coordinates: str, rounding: str) -> int:
    """The element that an element of the result is, by the specification of Resize."""
    match coordinates:
        case "asymmetric":
            where = place / factor
        case "align_corners":
            where = place * (size - 1) / (new - 1) if new > 1 else 0.0
        case "half_pixel" | "pytorch_half_pixel":
            where = (place + 0.5) / factor - 0.5 if new > 1 or coordinates == "half_pixel" else 0.0
        case _:
            raise UnsupportedError(f"has coordinates of the kind {coordinates}")
    match rounding:
        case "floor":
            found = math.floor(where)
        case "ceil":
            found = math.ceil(where)
        case "round_prefer_ceil":
            found = math.floor(where + 0.5)
        case _:
            found = math.ceil(where - 0.5)
    return min(max(found, 0), size - 1)


def _upsample(b: Builder, x: Value, scales: Value | None = None, **options: Any) -> Any:
    """What Resize was before opset 10."""
    given = Known(torch.tensor(options["scales"]), "") if "scales" in options else scales
    mode = options.get("mode", "nearest")
    if mode != "nearest":
        raise UnsupportedError(f"interpolates by {mode} in a way of its own")
    return _resize(b, x, None, given, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


OPS: dict[str, Callable[..., Any]] = {"Resize": _resize, "Upsample": _upsample}
