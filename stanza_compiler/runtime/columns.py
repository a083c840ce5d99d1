"""Linear layers of which every host has some of the columns."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .peers import Peers


class ColumnLinear(nn.Module):
    """This host's columns of y = x W' + b: rows of W under the layer's own parameter names.

        host 0   x ───────> y[:, 0:2]      x is whole in the first layer of a chain; a later one gathers it
        host 1   x ───────> y[:, 2:4]      from the hosts, and gives each the sum of its columns' gradients

    Of the first layer's x each host has the part of the gradient that comes from its own columns.
    """

    def __init__(self, linear: nn.Linear, peers: Peers, *, gathers: bool, device: torch.device) -> None:
        """`linear` may be on the meta device: its shapes are read, not its values."""
        super().__init__()
        self.width, self.inputs = linear.out_features, linear.in_features
        self.columns = peers.columns(self.width)
        self._peers, self._gathers = peers, gathers
        own = len(self.columns)
        self.weight = _parameter(linear.weight, (own, self.inputs), device)
        self.bias = _parameter(linear.bias, (own,), device) if linear.bias is not None else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] or, if it gathers, this host's columns of that, to [..., own columns]."""
        whole = _GatherColumns.apply(x, self._peers, self.inputs) if self._gathers and self._peers.count > 1 else x
        return F.linear(whole, self.weight, self.bias)


def split_columns(stage: nn.Module, columns: Mapping[str, int], peers: Peers, device: torch.device) -> None:
    """Put a ColumnLinear in the place of each Linear of `stage` that `columns` names, in the order of the chain."""
    for number, path in enumerate(columns):
        parent, _, name = path.rpartition(".")
        linear = stage.get_submodule(path)
        assert isinstance(linear, nn.Linear), path
        setattr(stage.get_submodule(parent), name, ColumnLinear(linear, peers, gathers=number > 0, device=device))


class Masks(TorchFunctionMode):
    """Within it dropout drops what one process would drop: every host draws the whole mask and takes its columns.

    A forward of a chain enters it once. Where the values are whole, before the first ColumnLinear, the mask is too.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        super().__init__()
        self._generator = torch.Generator(device).manual_seed(seed)
        self._columns: range | None = None
        self._width = 0

    def follow(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """A forward hook of each ColumnLinear: what comes now are its columns."""
        assert isinstance(module, ColumnLinear)
        self._columns, self._width = module.columns, module.width

    def begin(self) -> None:
        """The next values are whole again."""
        self._columns = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.dropout:
            return func(*args, **(kwargs or {}))
        return self._drop(*args, **(kwargs or {}))

    def _drop(self, values: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return values
        if p == 1:
            return values * 0.0
        columns = self._columns if self._columns is not None else range(values.shape[-1])
        width = self._width if self._columns is not None else values.shape[-1]
        whole = torch.empty((*values.shape[:-1], width), dtype=values.dtype, device=values.device)
        kept = whole.bernoulli_(1 - p, generator=self._generator).narrow(-1, columns.start, len(columns))
        return values * (kept / (1 - p))


class _GatherColumns(torch.autograd.Function):
    """Every host's columns, put together; backward, the sum of what every host says about one's own columns."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, peers: Peers, width: int) -> Tensor:
        ctx.peers = peers
        return peers.gather(own, width)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.peers.scatter_sum(gradients[0]), None, None


def _parameter(like: Tensor, shape: tuple[int, ...], device: torch.device) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=like.dtype, device=device), requires_grad=like.requires_grad)
