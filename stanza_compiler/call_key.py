"""What a call's shapes, FLOPs and writes depend on, so that of equal calls one needs running."""

import types
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload

_PLAIN = (type(None), bool, int, float, complex, str, bytes, types.EllipsisType)
_TORCH_PLAIN = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, type)
_MODULE_STATE = frozenset(vars(nn.Module()))
_HOOKS = tuple(name for name in _MODULE_STATE if name.endswith(("_hooks", "_hooks_with_kwargs")))


@dataclass(frozen=True, slots=True)
class CallKey:
    """Calls with equal `key` do the same to their `operands`, the tensors that they can reach, in equal order."""

    key: Hashable
    operands: tuple[torch.Tensor, ...]


class _Unknown(Exception):  # noqa: N818  # it says what was met, and never leaves this file
    """Something that may influence a call in a way that its make doesn't tell."""


class CallKeys:
    """Keys of the calls of one module tree, whose modules must not change meanwhile."""

    def __init__(self) -> None:
        self._modules: dict[int, tuple[Hashable, list[torch.Tensor]]] = {}

    def of(self, target: Any, args: Any, kwargs: Any) -> CallKey | None:
        """The key of calling a function, a tensor's method (given by name) or a module.

        None where it is not known what the call depends on: code that isn't torch's own, hooks, objects other than
        tensors, numbers and containers of them, and calls under autocast.
        """
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            return None
        operands: list[torch.Tensor] = []
        try:
            if isinstance(target, nn.Module):
                what, held = self._module(target)
                operands += held
            else:
                what = target if isinstance(target, str) else _function(target)
            passed = _make((args, kwargs), operands)
        except _Unknown:
            return None
        places: dict[int, int] = {}
        shared = tuple(places.setdefault(storage_id(tensor), len(places)) for tensor in operands)
        mode = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        return CallKey((what, passed, shared, mode), tuple(operands))

    def _module(self, module: nn.Module) -> tuple[Hashable, list[torch.Tensor]]:
        if id(module) not in self._modules:
            operands: list[torch.Tensor] = []
            self._modules[id(module)] = _module(module, operands), operands
        return self._modules[id(module)]


def storage_id(tensor: torch.Tensor) -> int:
    """One number for all tensors that share memory, while it lives."""
    return int(tensor.untyped_storage()._cdata)


def _module(module: nn.Module, operands: list[torch.Tensor]) -> Hashable:
    held = vars(module)
    if not type(module).__module__.startswith("torch.nn.") or "forward" in held or any(map(held.get, _HOOKS)):
        raise _Unknown
    own = {name: value for name, value in held.items() if name not in _MODULE_STATE}
    tensors = [*module._parameters.items(), *module._buffers.items()]
    children = tuple(
        (name, None if child is None else _module(child, operands)) for name, child in module._modules.items()
    )
    return type(module), module.training, _make((own, tensors), operands), children


def _function(function: Any) -> Hashable:
    """The function itself where it is torch's or Python's own."""
    if isinstance(function, OpOverload):
        known = function.namespace in ("aten", "prims")
    else:
        place = getattr(function, "__module__", None) or "torch"  # builtin functions of torch have none
        known = isinstance(function, _FUNCTIONS) and place.partition(".")[0] in ("torch", "_operator", "builtins")
    if not known:
        raise _Unknown
    return function  # type: ignore[no-any-return]


def _make(value: Any, operands: list[torch.Tensor]) -> Hashable:
    """A value with every tensor in it replaced by its make."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        operands.append(value)
        return _tensor(value)
    if kind in _PLAIN or isinstance(value, _TORCH_PLAIN):
        return kind, value
    if isinstance(value, tuple | list):
        return kind, tuple(_make(item, operands) for item in value)
    if isinstance(value, dict):
        return kind, tuple((key, _make(item, operands)) for key, item in value.items())
    if isinstance(value, slice):
        return kind, _make((value.start, value.stop, value.step), operands)
    return _function(value)


def _tensor(tensor: torch.Tensor) -> Hashable:
    if tensor.layout != torch.strided:
        raise _Unknown
    return (
        isinstance(tensor, nn.Parameter),
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.dtype,
        tensor.device,
        tensor.requires_grad,
        tensor.is_conj() or tensor.is_neg(),
    )
