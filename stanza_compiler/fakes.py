"""Tensors without data, made without asking PyTorch's dispatcher."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch

from stanza_compiler.call_key import storage_id
from stanza_compiler.loader import has_no_values
from stanza_compiler.module_copy import copied


class Fakes:
    """Makes the tensors of one FakeTensorMode, entered or not.

    The mode's own ways, from_tensor and torch.empty, cost five to twenty times as much, which shows in models of
    thousands of ops.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self._source = torch.empty((), requires_grad=True)

    def like(self, tensor: torch.Tensor, device: torch.device | None = None) -> FakeTensor:
        """A leaf of the same sizes, strides, dtype and device, on memory of its own, that requires no gradient."""
        with no_dispatch():
            bare = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return FakeTensor(self.mode, bare, device or tensor.device)

    def computed(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same as if it had been computed: one that requires a gradient is no leaf, which in-place ops refuse."""
        if not tensor.requires_grad:
            return self.like(tensor)
        with no_dispatch():
            made: torch.Tensor = _Computed.apply(self._source, lambda: self.like(tensor))
        return made

    def copy(self, root: nn.Module) -> nn.Module:
        """A copy of a module tree whose parameters, buffers and tensor attributes hold no data; ties stay ties.

        All are on the meta device if some are: a model that has no memory may keep small constants on another.
        """
        tensors = {id(tensor): tensor for module in root.modules() for tensor in _held(module)}
        device = torch.device("meta") if has_no_values(root) else None
        users = Counter(storage_id(tensor) for tensor in tensors.values() if tensor.layout == torch.strided)
        memo: dict[int, Any] = {}
        for key, tensor in tensors.items():
            is_alone = is_plain(tensor) and users[storage_id(tensor)] == 1
            fake = self.like(tensor, device) if is_alone else self._converted(tensor, device)
            fake.requires_grad_(tensor.requires_grad)
            if isinstance(tensor, nn.Parameter):
                fake._is_param = True  # as nn.Parameter does to a subclass of Tensor
            memo[key] = fake
        return copied(root, memo)

    def _converted(self, tensor: torch.Tensor, device: torch.device | None) -> torch.Tensor:
        return self.mode.from_tensor(tensor.detach().to(device or tensor.device), static_shapes=True)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether `Fakes.like` keeps all that there is to tell of a tensor on memory of its own."""
    known = type(tensor) in (torch.Tensor, nn.Parameter, FakeTensor) and tensor.layout == torch.strided
    return known and not (tensor.storage_offset() or tensor.is_conj() or tensor.is_neg())


def _held(module: nn.Module) -> list[torch.Tensor]:
    held = (*module._parameters.values(), *module._buffers.values(), *vars(module).values())
    return [value for value in held if isinstance(value, torch.Tensor)]


class _Computed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        return make()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        raise AssertionError("nobody goes backward through a fake result")
