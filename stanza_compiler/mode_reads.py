"""Which modules ask for the mode that they are in."""

from types import TracebackType
from typing import Any

from torch import nn


class ModeReads:
    """While entered, notes the modules whose `training` flag is read, in `readers` by identity.

    A model of which none reads it does the same in both modes, unless a train() of its own changes more than flags.
    """

    def __init__(self) -> None:
        self.readers: set[int] = set()

    def __enter__(self) -> "ModeReads":
        nn.Module.training = self  # type: ignore[assignment]  # before what stands in the module's own __dict__
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        del nn.Module.training

    def __get__(self, module: nn.Module | None, owner: type) -> Any:
        if module is None or "training" not in vars(module):
            raise AttributeError("training")
        self.readers.add(id(module))
        return vars(module)["training"]

    def __set__(self, module: nn.Module, value: bool) -> None:
        vars(module)["training"] = value


def has_own_modes(module: nn.Module) -> bool:
    """Whether train() may do more to a module than set its flag, or the flag is more than a value."""
    return type(module).train is not nn.Module.train or "train" in vars(module) or hasattr(type(module), "training")
