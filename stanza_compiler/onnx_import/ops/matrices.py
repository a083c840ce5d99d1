"""Products of matrices."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from stanza_compiler.onnx_import.builder import Builder
from stanza_compiler.onnx_import.values import Known, Value, shape_of


def _gemm(
    b: Builder,
    x: Value,
    y: Value,
    bias: Value | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803 - ONNX's own names
    transB: int = 0,  # noqa: N803
    broadcast: int = 0,
) -> Any:
    """A torch linear layer where the file has one's parameters."""
    if transA:
        x = b(torch.permute, x, (1, 0))
    is_vector = bias is None or (len(shape_of(bias)) == 1 and shape_of(bias)[0] == shape_of(y)[0 if transB else 1])
    if transB and alpha == 1.0 and (beta == 1.0 or bias is None) and is_vector:
        home = b.home(weight=y, bias=bias)
        if home is None or not isinstance(y, Known):
            return b(F.linear, x, y) if bias is None else b(F.linear, x, y, bias)
        width, depth = y.tensor.shape
        layer = nn.Linear(depth, width, bias=bias is not None, device="meta", dtype=y.tensor.dtype)
        return b.layer(home, layer, x, weight=y, bias=bias)
    if transB:
        y = b(torch.permute, y, (1, 0))
    product = b(operator.matmul, x, y)
    if alpha != 1.0:
        product = b(operator.mul, product, alpha)
    if bias is None or beta == 0.0:
        return product
    scaled = bias if beta == 1.0 else b(operator.mul, bias, beta)
    return b(operator.add, product, b.operand(scaled, product))


def _matmul(b: Builder, x: Value, y: Value) -> Any:
    return b(operator.matmul, x, y)


def _einsum(b: Builder, *values: Value, equation: str) -> Any:
    return b(torch.einsum, equation.replace(" ", ""), *values)


def _det(b: Builder, x: Value) -> Any:
    return b(torch.linalg.det, x)


OPS: dict[str, Callable[..., Any]] = {"Det": _det, "Einsum": _einsum, "Gemm": _gemm, "MatMul": _matmul}
