"""What a module can hold that no generated program would carry."""

import copy
from collections.abc import Iterator

import torch
from torch import nn

from stanza_compiler.errors import LoadError
from stanza_compiler.fixed_state import has_extra_state

_PLAIN = (torch.Tensor, nn.Parameter)


def refuse_uncarried(module: nn.Module, place: str) -> None:
    """Raise LoadError for state, hooks or names of `module` that a program would silently lose or change."""
    _refuse_names(module, place)
    _refuse_hooks(module, place)
    state = dict(_state(module))
    for name, tensor in state.items():
        _refuse_tensor(name, tensor, place)
    attributes = dict(_attributes(module))
    for name, tensor in (*attributes.items(), *state.items()):
        if tensor.grad_fn is not None:
            what = f"{name} was computed from parameters when the model was built"
            raise LoadError(place, what, "compute it in forward()")
    _refuse_shared_memory({**attributes, **state}, place)
    _refuse_state_dict(module, place)
    _refuse_what_cannot_be_copied(module, [*attributes.values(), *state.values()], place)


def untrained_notes(module: nn.Module) -> tuple[str, ...]:
    """Tensors that require a gradient and that no optimiser is given, because they are no parameters."""
    return tuple(
        f"{name} requires a gradient but is no parameter: nothing trains it"
        for name, value in (*_attributes(module), *module.named_buffers())
        if value.requires_grad and not isinstance(value, nn.Parameter)
    )


def _state(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers by all their names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _attributes(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors kept as plain attributes."""
    for path, child in module.named_modules():
        for name, value in vars(child).items():
            if isinstance(value, torch.Tensor):
                yield f"{path}.{name}" if path else name, value


def _refuse_names(module: nn.Module, place: str) -> None:
    for path, child in module.named_modules():
        for name in (*child._modules, *child._parameters, *child._buffers):
            if not name or "." in name:
                what = f"{path or 'the model'} holds something under the name {name!r}"
                raise LoadError(place, what, "use register_buffer, register_parameter or add_module, which refuse it")


def _refuse_tensor(name: str, tensor: torch.Tensor, place: str) -> None:
    if type(tensor) not in _PLAIN:
        raise LoadError(place, f"{name} is a {type(tensor).__name__}, a subclass of Tensor", "make it a plain tensor")
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.").replace("_", " ")
        raise LoadError(place, f"{name} is {kind}", "keep it dense, convert it in forward()")
    if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
        raise LoadError(place, f"{name} has a hook on its gradient, which a program loses", "remove the hook")


def _refuse_shared_memory(tensors: dict[str, torch.Tensor], place: str) -> None:
    """A trained parameter that lies on another tensor: training changes both, but not in a program."""
    once = {id(tensor): (name, tensor) for name, tensor in reversed(tensors.items())}.values()
    spans = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + _extent(tensor), name)
        for name, tensor in once
        if tensor.numel() and not tensor.is_meta
    )
    before: list[tuple[int, str]] = []
    for start, stop, name in spans:
        before = [(end, other) for end, other in before if start < end]
        for _, other in before:
            if tensors[name].requires_grad or tensors[other].requires_grad:
                what = f"{other} and {name} are two tensors in the same memory"
                raise LoadError(place, what, "register the same tensor under both names, or clone() one")
        before.append((stop, name))


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()


def _refuse_hooks(module: nn.Module, place: str) -> None:
    for path, child in module.named_modules():
        for kind in map(type, child._forward_pre_hooks.values()):
            if kind.__module__.startswith("torch.nn.utils."):
                what = f"{path or 'the model'} computes a parameter by {kind.__name__}, a hook of torch.nn.utils"
                raise LoadError(place, what, "use torch.nn.utils.parametrizations, or prune.remove()")
        if child._backward_hooks or child._backward_pre_hooks:
            what = f"{path or 'the model'} has a backward hook, which a program loses"
            raise LoadError(place, what, "remove the hook")


def _refuse_state_dict(module: nn.Module, place: str) -> None:
    """state_dict() has to give the tensors and the extra states of the modules, no others."""
    try:
        given = module.state_dict(keep_vars=True)
    except Exception as error:
        what = f"state_dict(keep_vars=True) raised {type(error).__name__}: {error}"
        raise LoadError(place, what, "leave state_dict() as torch.nn.Module has it") from error
    held: dict[str, torch.Tensor | None] = {}
    for path, child in module.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        bare = {**child._parameters, **child._buffers}
        held |= {
            f"{prefix}{name}": tensor
            for name, tensor in bare.items()
            if tensor is not None and name not in child._non_persistent_buffers_set
        }
        held |= {f"{prefix}_extra_state": None} if has_extra_state(child) else {}
    changed = [name for name, tensor in held.items() if tensor is not None and given.get(name) is not tensor]
    odd = [*changed, *sorted(set(given) ^ set(held))]
    if odd:
        what = f"state_dict() gives something else for {odd[0]!r} than the model holds"
        raise LoadError(place, what, "remove the hook on it, or the override")


def _refuse_what_cannot_be_copied(module: nn.Module, tensors: list[torch.Tensor], place: str) -> None:
    try:
        copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
    except Exception as error:
        what = f"the model can't be copied: {type(error).__name__}: {error}"
        raise LoadError(place, what, "keep what can't be copied outside of the model") from error
