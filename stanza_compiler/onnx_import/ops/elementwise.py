"""Ops of one tensor element by element."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from stanza_compiler.onnx_import.builder import Builder
from stanza_compiler.onnx_import.file import torch_dtype
from stanza_compiler.onnx_import.ops.arithmetic import on_sizes
from stanza_compiler.onnx_import.values import Known, UnsupportedError, Value, constant, dtype_of, number

_UNARY: dict[str, Callable[..., Any]] = {
    "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Asin": torch.asin, "Asinh": torch.asinh,
    "Atan": torch.atan, "Atanh": torch.atanh, "BitwiseNot": torch.bitwise_not, "Ceil": torch.ceil, "Cos": torch.cos,
    "Cosh": torch.cosh, "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor, "HardSwish": F.hardswish,
    "IsNaN": torch.isnan, "Log": torch.log, "Mish": F.mish, "Reciprocal": torch.reciprocal, "Relu": torch.relu,
    "Round": torch.round, "Sigmoid": torch.sigmoid, "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh,
    "Softplus": F.softplus, "Softsign": F.softsign, "Sqrt": torch.sqrt, "Tan": torch.tan, "Tanh": torch.tanh,
}  # fmt: skip


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda b, x: b(function, x)


def _neg(b: Builder, x: Value) -> Any:
    return on_sizes(b, operator.neg, x) if isinstance(x, np.ndarray) else b(operator.neg, x)


def _cast(b: Builder, x: Value, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    dtype = torch_dtype(to)
    if dtype is None:
        raise UnsupportedError(f"casts to type {to}, which torch doesn't have")
    if isinstance(x, np.ndarray):
        if dtype in (torch.int64, torch.int32):
            return x
        if not dtype.is_floating_point:
            raise UnsupportedError("casts a size that follows from the batch")
        return on_sizes(b, lambda size: b(operator.mul, size, 1.0), x)
    return x if dtype_of(x) == dtype else b("to", x, dtype)


def _cast_like(b: Builder, x: Value, like: Value, *, saturate: int = 1) -> Any:
    return x if dtype_of(x) == dtype_of(like) else b("to", x, dtype_of(like))


def _dropout(
    b: Builder,
    x: Value,
    given: Value | None = None,
    training_mode: Value | None = None,
    *,
    ratio: float = 0.5,
    seed: int = 0,
    is_test: int = 0,
) -> Any:
    """A torch layer, which drops while the module trains, whether or not the file was exported for inference.

    The ratio was an attribute before opset 12.
    """
    if b.is_read(1):
        raise UnsupportedError("gives its mask to others")
    share = ratio if given is None else number(given)
    return b.layer(None, nn.Dropout(share), x) if share else x


def _gelu(b: Builder, x: Value, *, approximate: str = "none") -> Any:
    return b(F.gelu, x) if approximate == "none" else b(F.gelu, x, approximate=approximate)


def _elu(b: Builder, x: Value, *, alpha: float = 1.0) -> Any:
    return b(F.elu, x) if alpha == 1.0 else b(F.elu, x, alpha=alpha)


def _celu(b: Builder, x: Value, *, alpha: float = 1.0) -> Any:
    return b(F.celu, x, alpha=alpha)


def _selu(b: Builder, x: Value, *, alpha: float = 1.6732632, gamma: float = 1.0507010) -> Any:
    return b(operator.mul, b(F.elu, x, alpha=alpha), gamma)


def _leaky_relu(b: Builder, x: Value, *, alpha: float = 0.01) -> Any:
    return b(F.leaky_relu, x, alpha)


def _thresholded_relu(b: Builder, x: Value, *, alpha: float = 1.0) -> Any:
    return b(F.threshold, x, alpha, 0.0)


def _hard_sigmoid(b: Builder, x: Value, *, alpha: float = 0.2, beta: float = 0.5) -> Any:
    if beta == 0.5 and abs(alpha * 6 - 1) < 1e-6:
        return b(F.hardsigmoid, x)
    return b(torch.clamp, b(operator.add, b(operator.mul, x, alpha), beta), min=0.0, max=1.0)


def _swish(b: Builder, x: Value, *, alpha: float = 1.0) -> Any:
    if alpha == 1.0:
        return b(F.silu, x)
    return b(operator.mul, x, b(torch.sigmoid, b(operator.mul, x, alpha)))


def _shrink(b: Builder, x: Value, *, bias: float = 0.0, lambd: float = 0.5) -> Any:
    above = b(torch.where, b(operator.gt, x, lambd), b(operator.sub, x, bias), 0.0)
    return b(torch.where, b(operator.lt, x, -lambd), b(operator.add, x, bias), above)


def _is_inf(b: Builder, x: Value, *, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    if detect_negative and detect_positive:
        return b(torch.isinf, x)
    if not detect_negative and not detect_positive:
        return b(torch.zeros_like, x, dtype=torch.bool)
    return b(torch.isposinf if detect_positive else torch.isneginf, x)


def _softmax(function: Callable[..., Any]) -> Callable[..., Any]:
    def handler(b: Builder, x: Value, *, axis: int | None = None) -> Any:
        """Before opset 13 an axis stood for itself and all that follow it, together."""
        if b.opset >= 13:
            return b(function, x, -1 if axis is None else axis)
        rank = len(b.dims(x))
        first = (1 if axis is None else axis) % rank
        if first == rank - 1:
            return b(function, x, -1)
        merged = b(torch.flatten, x, first)
        return b("view_as", b(function, merged, -1), x)

    return handler


def _hardmax(b: Builder, x: Value, *, axis: int = -1) -> Any:
    if b.opset < 13:
        raise UnsupportedError("is older than opset 13")
    largest = b(torch.argmax, x, axis, keepdim=True)
    return b(torch.scatter, b(torch.zeros_like, x), axis, largest, 1.0)


def _identity(b: Builder, x: Value) -> Any:
    return x


def _eye_like(b: Builder, x: Value, *, dtype: int | None = None, k: int = 0) -> Any:
    kind = torch_dtype(dtype) if dtype is not None else dtype_of(x)
    rows, columns = constant(x).shape
    return Known(torch.diag(torch.ones(rows + columns + abs(k)), k)[:rows, :columns].to(kind), "")


OPS: dict[str, Callable[..., Any]] = {
    **{name: _unary(function) for name, function in _UNARY.items()},
    "Neg": _neg,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Celu": _celu,
    "Dropout": _dropout,
    "Elu": _elu,
    "EyeLike": _eye_like,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "Hardmax": _hardmax,
    "Identity": _identity,
    "IsInf": _is_inf,
    "LeakyRelu": _leaky_relu,
    "LogSoftmax": _softmax(F.log_softmax),
    "Selu": _selu,
    "Shrink": _shrink,
    "Softmax": _softmax(F.softmax),
    "Swish": _swish,
    "ThresholdedRelu": _thresholded_relu,
}
