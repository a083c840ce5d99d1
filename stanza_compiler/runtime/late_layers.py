"""Linear and embedding calls whose backward gives the input's gradient at once and leaves the weight's for later."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

# Elements of a gradient that one thread computes at a time: each product packs all inputs of the layer anew.
CUT = 1 << 22


class Piece(Protocol):
    """One call's share of a parameter's gradient."""

    def write(self, gradient: Tensor) -> None:
        """Put it into `gradient`."""

    def add(self, gradient: Tensor, factor: float = 1.0) -> None:
        """Add `factor` times it to `gradient`."""

    def cut(self, gradient: Tensor) -> Iterator[tuple["Piece", Tensor]]:
        """Shares of parts of `gradient` that several threads may take, together the whole."""


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces with the same sum, of which one at most is a product: each would go through the whole gradient."""
    products = [piece for piece in pieces if isinstance(piece, _Product)]
    if len(products) < 2:
        return list(pieces)
    one = _Product(torch.cat([each.rows for each in products]), torch.cat([each.inputs for each in products]))
    return [one, *(piece for piece in pieces if not isinstance(piece, _Product))]


class Late(Protocol):
    """Who takes the pieces."""

    def takes(self, parameter: object) -> bool:
        """Whether this parameter's gradient may come late."""

    def holds(self, tensor: Tensor) -> bool:
        """Whether it is one of the parameters, or a view of one: that may have changed when the piece is computed."""

    def expect(self, parameter: Tensor) -> None:
        """Hear that pieces of its gradient may come."""

    @property
    def is_under_way(self) -> bool:
        """Whether the backward that calls is the one whose pieces come late."""

    def leave(self, parameter: Tensor, piece: Piece) -> None:
        """Take a piece."""


class Swap(TorchFunctionMode):
    """Swaps F.linear and F.embedding on parameters whose gradient may come late.

    Left to autograd: what runs under autocast, functorch, forward-mode differentiation, torch.compile or hooks on saved
    tensors (checkpointing counts what is saved), without gradients, and calls from within torch's own functions.
    """

    def __init__(self, late: Late) -> None:
        super().__init__()
        self._late = late

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _SWAPPED and _is_plain():
            return _SWAPPED[func](self._late, *args, **kwargs)
        return func(*args, **kwargs)


def _is_plain() -> bool:
    return (
        torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._autograd._top_saved_tensors_default_hooks(True)
        and forward_ad._current_level < 0
    )


def _linear(late: Late, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002  # F.linear's
    is_left = weight.is_complex() or torch.is_autocast_enabled(weight.device.type) or type(input) not in _TENSORS
    if is_left or not late.takes(weight) or late.holds(input):
        return F.linear(input, weight, bias)
    late.expect(weight)
    if late.takes(bias):
        assert bias is not None
        late.expect(bias)
    y: Tensor = _LateLinear.apply(input, weight, bias, late)
    return y


def _embedding(
    late: Late,
    input: Tensor,  # noqa: A002  # F.embedding's own names
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    if not late.takes(weight) or max_norm is not None or scale_grad_by_freq or sparse:
        return F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    late.expect(weight)
    y: Tensor = _LateEmbedding.apply(input, weight, padding_idx, late)
    return y


_TENSORS = (Tensor, torch.nn.Parameter)
_SWAPPED: Mapping[Any, Callable[..., Tensor]] = {F.linear: _linear, F.embedding: _embedding}


class _LateLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, late: Late) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias, ctx.late = bias, late
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        needs_x, _, needs_bias, _ = ctx.needs_input_grad
        of_x = gradient @ weight if needs_x else None
        rows = gradient.reshape(-1, gradient.shape[-1])
        of_weight = None
        if not ctx.late.is_under_way:
            of_weight = rows.t() @ x.reshape(-1, x.shape[-1])
        else:
            ctx.late.leave(weight, _Product(rows.detach(), x.detach().reshape(-1, x.shape[-1])))
            if needs_bias and ctx.late.takes(ctx.bias):
                ctx.late.leave(ctx.bias, _Sum(rows.detach()))
                needs_bias = False
        return of_x, of_weight, rows.sum(0) if needs_bias else None, None


class _LateEmbedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding_idx: int | None, late: Late) -> Tensor:
        ctx.save_for_backward(ids, weight)
        ctx.padding_idx, ctx.late = padding_idx, late
        return F.embedding(ids, weight, padding_idx)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ids, weight = ctx.saved_tensors
        rows = len(weight)
        padding = -1 if ctx.padding_idx is None else ctx.padding_idx % rows
        if ctx.late.is_under_way:
            ctx.late.leave(weight, _Lookups(gradients[0].detach(), ids, padding))
            return None, None, None, None
        return None, torch.ops.aten.embedding_dense_backward(gradients[0], ids, rows, padding, False), None, None


@dataclass(frozen=True, slots=True)
class _Product:
    """Of a weight [out, in]: output gradients [rows, out] transposed times inputs [rows, in]."""

    rows: Tensor
    inputs: Tensor

    def write(self, gradient: Tensor) -> None:
        torch.mm(self.rows.t(), self.inputs, out=gradient)

    def add(self, gradient: Tensor, factor: float = 1.0) -> None:
        gradient.addmm_(self.rows.t(), self.inputs, alpha=factor)

    def cut(self, gradient: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        height = max(1, CUT // gradient.shape[1])
        for rows, part in zip(torch.split(self.rows, height, 1), torch.split(gradient, height), strict=True):
            yield _Product(rows, self.inputs), part


@dataclass(frozen=True, slots=True)
class _Sum:
    """Of a bias [out]: the sum of output gradients [rows, out]."""

    rows: Tensor

    def write(self, gradient: Tensor) -> None:
        torch.sum(self.rows, 0, out=gradient)

    def add(self, gradient: Tensor, factor: float = 1.0) -> None:
        gradient.add_(self.rows.sum(0), alpha=factor)

    def cut(self, gradient: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        yield self, gradient


@dataclass(frozen=True, slots=True)
class _Lookups:
    """Of a table [rows, width]: output gradients [..., width] added up by their ids [...]."""

    gradients: Tensor
    ids: Tensor
    padding: int

    def write(self, gradient: Tensor) -> None:
        self.add(gradient.zero_())

    def add(self, gradient: Tensor, factor: float = 1.0) -> None:
        ids, gradients = self.ids.reshape(-1), self.gradients.reshape(-1, self.gradients.shape[-1])
        if gradient.device.type != "cpu":  # index_add_ is not deterministic there
            dense = torch.ops.aten.embedding_dense_backward(gradients, ids, len(gradient), self.padding, False)
            gradient.add_(dense, alpha=factor)
            return
        if self.padding >= 0:
            kept = ids != self.padding
            ids, gradients = ids[kept], gradients[kept]
        gradient.index_add_(0, ids, gradients, alpha=factor)

    def cut(self, gradient: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        yield self, gradient
