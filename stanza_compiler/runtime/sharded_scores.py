"""The output of a sharded stage, as the user's loss_fn sees it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .cross_entropy import sharded_cross_entropy
from .peers import Peers

# What is known of a tensor without its values.
_FACTS = {
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "requires_grad", "layout")),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, Tensor.is_complex, Tensor.__len__),
    *(torch.is_floating_point, torch.is_complex, torch.numel),
}
_SHAPES = {torch.flatten, torch.reshape, Tensor.flatten, Tensor.reshape, Tensor.view}
_POINTWISE = {
    *(Tensor.float, Tensor.double, Tensor.contiguous, Tensor.mul, Tensor.div, Tensor.neg, Tensor.__neg__),
    *(Tensor.__mul__, Tensor.__rmul__, Tensor.__truediv__, torch.mul, torch.div, torch.neg),
}


_WRITES = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"}


@dataclass(slots=True)
class Uses:
    """What became of the scores of one forward: the function that first took all of them, and whether views exist."""

    gathered_by: str = ""
    has_views: bool = False


class ShardedScores(Tensor):
    """Class scores [..., classes] (`axis` -1, or another one) of which this host has some of the classes.

    Cross-entropy of class numbers is computed where the scores are; so are casts, multiples, and changes of shape that
    leave the classes' axis alone. Whatever else loss_fn does, it does with the scores of all hosts put together,
    which then stand for these.
    """

    local: Tensor
    peers: Peers
    axis: int
    uses: Uses
    gathered: Tensor | None

    @staticmethod
    def of(local: Tensor, classes: int, peers: Peers, *, axis: int = -1, uses: Uses | None = None) -> "ShardedScores":
        """`local` holds the host's own classes along `axis`, counted from the end, of `classes` in all."""
        sizes = list(local.shape)
        sizes[axis] = classes
        made: Any = Tensor._make_wrapper_subclass(
            ShardedScores, sizes, dtype=local.dtype, device=local.device, requires_grad=local.requires_grad
        )
        made.local, made.peers, made.axis, made.gathered = local, peers, axis, None
        made.uses = uses or Uses()
        scores: ShardedScores = made
        return scores

    @property
    def classes(self) -> int:
        with torch._C.DisableTorchFunctionSubclass():
            return self.shape[self.axis]

    def whole(self, asker: str) -> Tensor:
        """The scores of all hosts, for `asker`; backward, each host keeps the gradient of its own.

        Raises RuntimeError where `asker` would write to scores that have views: these would not see it.
        """
        writes = asker in _WRITES or (asker.endswith("_") and not asker.endswith("__"))
        if writes and self.uses.has_views:
            raise RuntimeError(f"{asker} writes to sharded scores of which there are views")
        self.uses.gathered_by = self.uses.gathered_by or asker
        if self.gathered is None:
            self.gathered = _Gather.apply(self.local.movedim(self.axis, -1), self.peers, self.classes)
            self.gathered = self.gathered.movedim(-1, self.axis)
        return self.gathered

    def view_of(self, local: Tensor, axis: int) -> "ShardedScores":
        self.uses.has_views = True
        return ShardedScores.of(local, self.classes, self.peers, axis=axis, uses=self.uses)

    def __repr__(self) -> str:  # type: ignore[override]  # torch's would gather the values, and so wait for other hosts
        return f"ShardedScores({tuple(self.local.shape)} of {self.classes} classes)"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        sharded = _where_they_are(func, args, kwargs)
        if sharded is not None:
            return sharded
        name = getattr(func, "__name__", str(func))

        def whole(value: Any) -> Any:
            return value.whole(name) if isinstance(value, ShardedScores) else value

        return func(*_mapped(whole, args), **_mapped(whole, kwargs))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's has no self
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{func} was called past __torch_function__ on scores that no host has whole")


def _where_they_are(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """The result from each host's own scores, None where it takes all of them."""
    scores, others = next((value for value in args if isinstance(value, ShardedScores)), None), args[1:]
    if scores is None or scores.gathered is not None:
        return None
    if func is F.cross_entropy and scores is args[0]:
        return _cross_entropy(scores, *others, **kwargs)
    if func in _POINTWISE and not kwargs:
        plain = [value for value in args if value is not scores]
        if all(isinstance(value, (int, float)) for value in plain):
            return scores.view_of(func(*(scores.local if value is scores else value for value in args)), scores.axis)
    if func in (Tensor.to, Tensor.type) and len(others) == 1 and isinstance(others[0], torch.dtype) and not kwargs:
        return scores.view_of(scores.local.to(others[0]), scores.axis)
    if func in (torch.transpose, Tensor.transpose) and len(others) == 2 and not kwargs:
        dims = [dim % scores.local.dim() - scores.local.dim() for dim in others]
        axis = dict(zip(dims, reversed(dims), strict=True)).get(scores.axis, scores.axis)
        return scores.view_of(func(scores.local, *dims), axis)
    if func in _SHAPES and scores.axis == -1:
        return _reshaped(scores, func, others, kwargs)
    return None


def _reshaped(scores: ShardedScores, func: Any, others: Any, kwargs: Any) -> Tensor | None:
    """A change of shape in front of the classes' axis, the last one."""
    with torch._C.DisableTorchFunctionSubclass():
        shape = func(torch.empty(scores.shape, device="meta"), *others, **kwargs).shape
    if not shape or shape[-1] != scores.classes:
        return None
    return scores.view_of(scores.local.reshape(*shape[:-1], scores.local.shape[-1]), -1)


def _cross_entropy(
    scores: ShardedScores,
    target: Any,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor | None:
    """As torch has it, [N, C], [N, C, ...] or [C]; None for targets that are probabilities and outdated arguments."""
    is_classes = isinstance(target, Tensor) and not isinstance(target, ShardedScores) and not target.is_floating_point()
    outdated = size_average is not None or reduce is not None
    local = scores.local
    if not is_classes or outdated or scores.axis + local.dim() != min(1, local.dim() - 1):
        return None
    rows = local.movedim(scores.axis, -1)
    if target.shape != rows.shape[:-1]:
        return None
    wide = rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
    losses = sharded_cross_entropy(
        wide.reshape(-1, rows.shape[-1]),
        target.reshape(-1),
        scores.peers,
        scores.classes,
        weight=weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    ).to(local.dtype)
    return losses.view(target.shape) if reduction == "none" else losses


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _mapped(function, value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)) and not hasattr(tree, "_fields"):
        return type(tree)(_mapped(function, value) for value in tree)
    return function(tree)


class _Gather(torch.autograd.Function):
    """All hosts' columns, of which every host then makes the same: each takes its own from the gradient."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, peers: Peers, width: int) -> Tensor:
        ctx.columns = peers.columns(width)
        whole = peers.gather(own, width)
        return whole.clone() if whole is own else whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0].narrow(-1, ctx.columns.start, len(ctx.columns)), None, None
