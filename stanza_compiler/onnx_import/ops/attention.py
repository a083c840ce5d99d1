"""Attention as one op (opset 23), and the rotation of its queries and keys."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from stanza_compiler.onnx_import.builder import Builder
from stanza_compiler.onnx_import.ops.shapes import view
from stanza_compiler.onnx_import.values import UnsupportedError, Value, dtype_of, rank_of, shape_of


def _attention(
    b: Builder,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    valid: Value | None = None,
    *,
    is_causal: int = 0,
    q_num_heads: int = 0,
    kv_num_heads: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    qk_matmul_output_mode: int = 0,
    softmax_precision: int = 1,
) -> Any:
    """Tensors of three axes hold their heads side by side in the last one."""
    if past_key is not None or past_value is not None or valid is not None or any(map(b.is_read, (1, 2, 3))):
        raise UnsupportedError("keeps keys and values of earlier calls")
    if softcap:
        raise UnsupportedError("caps its scores")
    is_flat = rank_of(query) == 3
    if is_flat:
        query = _heads(b, query, q_num_heads)
        key, value = _heads(b, key, kv_num_heads), _heads(b, value, kv_num_heads)
    options: dict[str, Any] = {} if scale is None else {"scale": scale}
    if shape_of(query)[1] != shape_of(key)[1]:
        options["enable_gqa"] = True
    if is_causal and mask is None:
        options["is_causal"] = True
    elif mask is not None:
        options["attn_mask"] = _causal(b, mask, query, key) if is_causal else mask
    y = b(F.scaled_dot_product_attention, query, key, value, **options)
    if not is_flat:
        return y
    _, heads, length, width = shape_of(y)
    if heads is None or length is None or width is None:
        raise UnsupportedError("has a sequence as long as the batch")
    return view(b, b(torch.permute, y, (0, 2, 1, 3)), [b.size(y, 0), length, heads * width])


def _heads(b: Builder, x: Value, heads: int) -> Value:
    _, length, width = shape_of(x)
    if length is None or width is None or not heads:
        raise UnsupportedError("has a sequence as long as the batch, or no heads")
    split: Value = b(torch.permute, view(b, x, [b.size(x, 0), length, heads, width // heads]), (0, 2, 1, 3))
    return split


def _causal(b: Builder, mask: Value, query: Value, key: Value) -> Value:
    """The mask where a query sees no later key."""
    sees = b(torch.tril, b(torch.ones, b.size(query, 2), b.size(key, 2), dtype=torch.bool))
    both: Value
    if dtype_of(mask) == torch.bool:
        both = b(torch.logical_and, mask, sees)
    else:
        both = b(torch.where, sees, mask, float("-inf"))
    return both


def _rotary(
    b: Builder,
    x: Value,
    cos: Value,
    sin: Value,
    positions: Value | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Any:
    """The caches hold a row for each position, half as long as what is rotated."""
    if rank_of(x) != 4 or rotary_embedding_dim or interleaved:
        raise UnsupportedError("rotates parts, pairs or heads side by side")
    if positions is not None:
        cos, sin = (b(operator.getitem, cache, positions) for cache in (cos, sin))
    cos, sin = (b(torch.unsqueeze, cache, 1) for cache in (cos, sin))
    width = shape_of(x)[-1]
    assert width is not None
    one, other = b(torch.split, x, width // 2, -1)
    real = b(operator.sub, b(operator.mul, cos, one), b(operator.mul, sin, other))
    imaginary = b(operator.add, b(operator.mul, sin, one), b(operator.mul, cos, other))
    return b(torch.cat, [real, imaginary], -1)


OPS: dict[str, Callable[..., Any]] = {"Attention": _attention, "RotaryEmbedding": _rotary}
