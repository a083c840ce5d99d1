"""Convolutions, and the padding that they share with pools."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.nn import functional as F

from stanza_compiler.onnx_import.builder import Builder
from stanza_compiler.onnx_import.values import Known, UnsupportedError, Value, rank_of, shape_of

_LAYERS: dict[int, Callable[..., nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_FUNCTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_TRANSPOSED_LAYERS: dict[int, Callable[..., nn.Module]] = {
    1: nn.ConvTranspose1d,
    2: nn.ConvTranspose2d,
    3: nn.ConvTranspose3d,
}


def spatial(x: Value) -> tuple[int, ...]:
    """The sizes behind batch and channels."""
    found = [size for size in shape_of(x)[2:] if size is not None]
    if len(found) != rank_of(x) - 2 or not 1 <= len(found) <= 3:
        raise UnsupportedError(
            f"takes {rank_of(x)} axes, of which only the first may be the batch, and 3 to 5 are known"
        )
    return tuple(found)


def paddings(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    *,
    pads: Sequence[int] | None,
    auto_pad: str,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What is added before and behind each spatial axis.

    SAME gives ceil(size / stride) windows, an odd element of padding behind (UPPER) or before (LOWER).
    """
    count = len(sizes)
    if auto_pad in ("NOTSET", ""):
        given = tuple(pads) if pads else (0,) * (2 * count)
        return given[:count], given[count:]
    if auto_pad == "VALID":
        return (0,) * count, (0,) * count
    totals = [
        max((-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size, 0)
        for size, width, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    small, large = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)


def flat_padding(before: Sequence[int], behind: Sequence[int]) -> list[int]:
    """As F.pad counts: pairs, the last axis first."""
    return [size for pair in reversed(list(zip(before, behind, strict=True))) for size in pair]


def told(**options: tuple[Any, Any]) -> dict[str, Any]:
    """The options, given as (value, default), that differ from their default."""
    return {
        name: value
        for name, (value, default) in options.items()
        if any(item != default for item in (value if isinstance(value, tuple) else (value,)))
    }


def _conv(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    *,
    kernel_shape: list[int] | None = None,
    strides: list[int] | None = None,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    auto_pad: str = "NOTSET",
    group: int = 1,
) -> Any:
    """A torch layer where the file has one's parameters."""
    sizes, kernel = spatial(x), spatial(weight)
    stride = tuple(strides or [1] * len(sizes))
    dilation = tuple(dilations or [1] * len(sizes))
    before, behind = paddings(sizes, kernel, stride, dilation, pads=pads, auto_pad=auto_pad)
    if before != behind:
        x, before = b(F.pad, x, flat_padding(before, behind)), (0,) * len(sizes)
    home = b.home(weight=weight, bias=bias)
    if home is None or not isinstance(weight, Known):
        options = told(stride=(stride, 1), padding=(before, 0), dilation=(dilation, 1), groups=(group, 1))
        return b(_FUNCTIONS[len(sizes)], x, weight, *([] if bias is None else [bias]), **options)
    layer = _LAYERS[len(sizes)](
        weight.tensor.shape[1] * group,
        weight.tensor.shape[0],
        kernel,
        stride=stride,
        padding=before,
        dilation=dilation,
        groups=group,
        bias=bias is not None,
        device="meta",
        dtype=weight.tensor.dtype,
    )
    return b.layer(home, layer, x, weight=weight, bias=bias)


def _conv_transpose(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    *,
    kernel_shape: list[int] | None = None,
    strides: list[int] | None = None,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    output_padding: list[int] | None = None,
    output_shape: list[int] | None = None,
    auto_pad: str = "NOTSET",
    group: int = 1,
) -> Any:
    """Pads are cut from the result, output_padding is added behind it."""
    sizes, kernel = spatial(x), spatial(weight)
    count = len(sizes)
    stride, dilation = tuple(strides or [1] * count), tuple(dilations or [1] * count)
    added = tuple(output_padding or [0] * count)
    full = [
        (size - 1) * step + (width - 1) * spread + 1 + more
        for size, step, width, spread, more in zip(sizes, stride, kernel, dilation, added, strict=True)
    ]
    before, behind = _cuts(full, sizes, stride, pads=pads, output_shape=output_shape, auto_pad=auto_pad)
    is_symmetric = before == behind and min(before) >= 0
    padding = before if is_symmetric else (0,) * count
    home = b.home(weight=weight, bias=bias)
    if home is None or not isinstance(weight, Known):
        options = told(
            stride=(stride, 1),
            padding=(padding, 0),
            output_padding=(added, 0),
            groups=(group, 1),
            dilation=(dilation, 1),
        )
        y = b(_TRANSPOSED[count], x, weight, *([] if bias is None else [bias]), **options)
    else:
        layer = _TRANSPOSED_LAYERS[count](
            weight.tensor.shape[0],
            weight.tensor.shape[1] * group,
            kernel,
            stride=stride,
            padding=padding,
            output_padding=added,
            groups=group,
            bias=bias is not None,
            dilation=dilation,
            device="meta",
            dtype=weight.tensor.dtype,
        )
        y = b.layer(home, layer, x, weight=weight, bias=bias)
    return y if is_symmetric else b(F.pad, y, [-cut for cut in flat_padding(before, behind)])


def _cuts(
    full: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    *,
    pads: Sequence[int] | None,
    output_shape: Sequence[int] | None,
    auto_pad: str,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What is cut off before and behind each axis."""
    if output_shape is None and auto_pad in ("NOTSET", "VALID", ""):
        given = tuple(pads) if pads and auto_pad != "VALID" else (0,) * (2 * len(full))
        return given[: len(full)], given[len(full) :]
    wanted = output_shape or [min(size * stride, have) for size, stride, have in zip(sizes, strides, full, strict=True)]
    totals = [have - want for have, want in zip(full, wanted[-len(full) :], strict=True)]
    small, large = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)


OPS: dict[str, Callable[..., Any]] = {"Conv": _conv, "ConvTranspose": _conv_transpose}
