"""FLOPs of the aten ops that torch.utils.flop_counter has no formula for, or one that depends on the kernel.

A formula takes the op's own arguments and `out_val`, and returns 2 per multiply-add, in matrix products and sums of
products alone. A forward is counted dense, however much of it a mask or a padding hides; a backward is the products
that its gradients need, never what a kernel computes once more to save memory.
"""

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry


def formula_of(func: Any) -> Callable[..., int] | None:
    """The formula of an operator, ours or else torch's own; an in-place op has that of its out-of-place form."""
    if isinstance(func, torch._ops.HigherOrderOperator):
        return flop_registry.get(func)
    return _FORMULAS.get(func._schema.name.removesuffix("_")) or flop_registry.get(func.overloadpacket)


def _of_first(matrix: Tensor, vector: Tensor, **_: Any) -> int:
    """Of mv and dot: each element of the first is multiplied once."""
    return 2 * matrix.numel()


def _of_matrix_products(left: Tensor, right: Tensor, **_: Any) -> int:
    """Of mm and bmm: each element of the first meets each column of the second."""
    return 2 * left.numel() * right.shape[-1]


def _adding(formula: Callable[..., int]) -> Callable[..., int]:
    """The same for an op that adds the product to its first argument."""
    return lambda added, left, right, **_: formula(left, right)


def _uses(rows: int, weights: Iterable[Tensor]) -> int:
    """Every weight of the matrices, biases left out, is used once for each row."""
    return 2 * rows * sum(weight.numel() for weight in weights if weight.dim() == 2)


def _grouped_mm(left: Tensor, right: Tensor, *_: Any, **__: Any) -> int:
    """Each group's rows, columns or inner length lie one after the other in the operand that has no group axis."""
    per_group = left.shape[-2:] if right.dim() == 2 else left.shape
    return 2 * prod(per_group) * right.shape[-1]


def _convolved(x: Tensor, weight: Tensor, output: Tensor, transposed: bool = False) -> int:
    """Every weight is used once at each position of the output or, transposed, of the input."""
    return 2 * x.shape[0] * prod((x if transposed else output).shape[2:]) * weight.numel()


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any, **_: Any) -> int:
    transposed, output_mask = rest[4], rest[7]
    return sum(map(bool, output_mask[:2])) * _convolved(x, weight, grad, transposed)


def _conv_tbc(x: Tensor, weight: Tensor, *_: Any, out_val: Tensor, **__: Any) -> int:
    return 2 * prod(out_val.shape[:2]) * weight.numel()


def _deform_conv(x: Tensor, weight: Tensor, *_: Any, out_val: Tensor, **__: Any) -> int:
    return _convolved(x, weight, out_val)


def _deform_conv_backward(grad: Tensor, x: Tensor, weight: Tensor, *_: Any, **__: Any) -> int:
    return 2 * _convolved(x, weight, grad)


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """The scores and the values' sums; heads of keys and values that queries share are multiplied once per query."""
    return 2 * prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _attention_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    return 2 * _attention(query, key, value)


def _multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    heads: int,
    inward: Tensor,
    _: Any,
    outward: Tensor,
    *__: Any,
    **___: Any,
) -> int:
    """The projections of queries, keys and values, attention itself, and the projection of its result."""
    rows = prod(query.shape[:-1]), prod(key.shape[:-1]), prod(value.shape[:-1])
    projections = 2 * sum(rows) * inward.numel() // 3 + _uses(rows[0], [outward])
    return projections + _attention(query, key, value)


def _encoder_layer(source: Tensor, width: int, heads: int, *rest: Any, **_: Any) -> int:
    feed_forward = _uses(prod(source.shape[:-1]), (rest[11], rest[13]))
    return _multi_head_attention(source, source, source, width, heads, *rest) + feed_forward


def _recurrent(inputs: Tensor, weights: Sequence[Tensor]) -> int:
    """All gates, layers and directions, at each step of each sample."""
    return _uses(prod(inputs.shape[:-1]), weights)


def _recurrent_backward(
    inputs: Tensor, weights: Sequence[Tensor], stride: int, directions: int, initial: Tensor
) -> int:
    """A product for each gradient that is needed: of the weights, of a layer's input, of the state before a step.

    Each layer and direction has `stride` weights: of its input, of its state, biases, of its projection.
    """
    flops = _recurrent(inputs, weights) * (1 + any(weight.requires_grad for weight in weights))
    if not inputs.requires_grad:
        flops -= _recurrent(inputs, weights[: directions * stride : stride])
    if not initial.requires_grad:
        flops -= _uses(initial.shape[-2], weights[1::stride])
    return flops


def _onednn_rnn(inputs: Tensor, *rest: Any, **_: Any) -> int:
    return _recurrent(inputs, rest[:2])


def _onednn_rnn_backward(inputs: Tensor, *rest: Any, **_: Any) -> int:
    return _recurrent_backward(inputs, rest[:2], stride=2, directions=1, initial=rest[4])


def _cudnn_rnn(inputs: Tensor, weights: Sequence[Tensor], *_: Any, **__: Any) -> int:
    return _recurrent(inputs, weights)


def _cudnn_rnn_backward(inputs: Tensor, weights: Sequence[Tensor], stride: int, *rest: Any, **_: Any) -> int:
    initial, bidirectional = rest[1], rest[14]
    return _recurrent_backward(inputs, weights, stride, 1 + bidirectional, initial)


def _trilinear(
    one: Tensor,
    two: Tensor,
    three: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    summed: Sequence[int],
    *_: Any,
    **__: Any,
) -> int:
    """The sum of products of three: the first two are multiplied, summed where the third has no axis, then the third.

    A product that nothing is summed over has no multiply-adds.
    """
    sizes = [_expanded(one, expand1), _expanded(two, expand2), _expanded(three, expand3)]
    early = [axis for axis in summed if axis in expand3]
    pair = list(map(max, sizes[0], sizes[1]))
    rest = [1 if axis in early else size for axis, size in enumerate(pair)]
    first = 2 * prod(pair) if early else 0
    return first + (2 * prod(map(max, rest, sizes[2])) if len(early) < len(summed) else 0)


def _expanded(tensor: Tensor, axes: Sequence[int]) -> list[int]:
    sizes = list(tensor.shape)
    for axis in axes:
        sizes.insert(axis, 1)
    return sizes


def _distances(points: Tensor, *_: Any, out_val: Tensor, **__: Any) -> int:
    """One multiply-add per coordinate of each pair of points, whichever the norm and the kernel."""
    return 2 * out_val.numel() * points.shape[-1]


def _distances_backward(grad: Tensor, points: Tensor, *_: Any, **__: Any) -> int:
    return 2 * grad.numel() * points.shape[-1]


def _pdist_backward(grad: Tensor, points: Tensor, *_: Any, **__: Any) -> int:
    return 2 * _distances_backward(grad, points)  # both points of a pair move


_FORMULAS: dict[str, Callable[..., int]] = {
    "aten::mv": _of_first,
    "aten::dot": _of_first,
    "aten::vdot": _of_first,
    "aten::addmv": _adding(_of_first),
    "aten::addmm": _adding(_of_matrix_products),
    "aten::_addmm_activation": _adding(_of_matrix_products),
    "aten::baddbmm": _adding(_of_matrix_products),
    "aten::addbmm": _adding(_of_matrix_products),
    "aten::_int_mm": _of_matrix_products,
    "aten::_grouped_mm": _grouped_mm,
    "aten::convolution_backward": _convolution_backward,
    "aten::conv_tbc": _conv_tbc,
    "torchvision::deform_conv2d": _deform_conv,
    "torchvision::_deform_conv2d_backward": _deform_conv_backward,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention,
    "aten::_scaled_dot_product_attention_math_for_mps": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "aten::_scaled_dot_product_flash_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention_backward,
    "aten::_native_multi_head_attention": _multi_head_attention,
    "aten::_transformer_encoder_layer_fwd": _encoder_layer,
    "aten::mkldnn_rnn_layer": _onednn_rnn,
    "aten::mkldnn_rnn_layer_backward": _onednn_rnn_backward,
    "aten::_cudnn_rnn": _cudnn_rnn,
    "aten::_cudnn_rnn_backward": _cudnn_rnn_backward,
    "aten::_trilinear": _trilinear,
    "aten::_cdist_forward": _distances,
    "aten::_euclidean_dist": _distances,
    "aten::_pdist_forward": _distances,
    "aten::_cdist_backward": _distances_backward,
    "aten::_pdist_backward": _pdist_backward,
}
