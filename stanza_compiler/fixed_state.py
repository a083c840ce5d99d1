"""The extra states of a model's state_dict, proved to stay what they are."""

import copy
import io
import pickle
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from stanza_compiler.call import Call
from stanza_compiler.errors import EmitError
from stanza_compiler.extra_state import same
from stanza_compiler.undisturbed import seeded

_REMEDY = "keep it in buffers"


def has_extra_state(module: nn.Module) -> bool:
    """Whether the state_dict of a module has a value that is neither parameter nor buffer."""
    return type(module).get_extra_state is not nn.Module.get_extra_state


def fixed_states(module: nn.Module, call: Call) -> dict[str, Any]:
    """The extra states by module path.

    Raises EmitError for one that forward(), the mode or the module's tensors change, which a program could not follow,
    and for one that can't be read back without running code from the file.
    """
    if not any(map(has_extra_state, module.modules())):
        return {}
    model = copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})
    states = {path: _read_back(path, owner.get_extra_state()) for path, owner in _owners(model)}
    for training in (True, False):
        model.train(training)
        args, kwargs = call.arguments()
        with seeded(0), torch.no_grad():
            model(*args, **kwargs)
        for path, owner in _owners(model):
            if not same(owner.get_extra_state(), states[path]):
                raise EmitError(_place(path), "forward() changes its extra state, which a program fixes", _REMEDY)
    for path, owner in _owners(module):
        if not same(_changed(owner).get_extra_state(), states[path]):
            raise EmitError(
                _place(path), "its extra state depends on its tensors, but a program fixes it", "leave it out"
            )
    return states


def _owners(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((path, module) for path, module in model.named_modules() if has_extra_state(module))


def _place(path: str) -> str:
    return path or "the model"


def _changed(module: nn.Module) -> nn.Module:
    """A copy of the module with other values in its parameters and buffers."""
    changed = copy.deepcopy(module)
    with torch.no_grad():
        for tensor in [*changed.parameters(), *changed.buffers()]:
            if all(stride or size < 2 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
                tensor.logical_not_() if tensor.dtype == torch.bool else tensor.add_(1)
    return changed


def _read_back(path: str, state: Any) -> Any:
    """The state as a file gives it that holds no code."""
    file = io.BytesIO()
    cause: Exception | None = None
    try:
        torch.save(state, file)
        file.seek(0)
        read = torch.load(file, weights_only=True)
        if same(read, state):
            return read
    except (pickle.PicklingError, pickle.UnpicklingError, AttributeError, TypeError, RuntimeError) as error:
        cause = error
    what = f"its extra state, a {type(state).__name__}, can't be read back without running code from the file"
    remedy = "give tensors, numbers, strings, lists, tuples or dicts in get_extra_state()"
    raise EmitError(_place(path), what, remedy) from cause
