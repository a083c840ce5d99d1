"""What modules keep in the model's state_dict beside tensors; copied verbatim beside the stages."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn


class ExtraState(nn.Module):
    """Stands where the model has a module with get_extra_state(), whose extra state it gives.

    The extra state is fixed: what forward() computes was compiled with it.
    """

    def __init__(self, path: str = "") -> None:
        """`path` is the module's name in the model."""
        super().__init__()
        self.__path = path

    def get_extra_state(self) -> Any:
        return _extra_states()[self.__path]

    def set_extra_state(self, state: Any) -> None:
        """Accept the same state again. Raises ValueError for another one."""
        if not same(state, self.get_extra_state()):
            raise ValueError(
                f"the extra state of {self.__path or 'the model'} is another one than the program was compiled with; "
                "compile the model again after it has loaded this state_dict"
            )


@cache
def _extra_states() -> dict[str, Any]:
    states: dict[str, Any] = torch.load(Path(__file__).parent / "weights" / "extra_state.pt", weights_only=True)
    return states


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, the tensors and containers in them included; NaN equals itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        other = other.to(one.device)
        equal_values = one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
        return one.dtype == other.dtype and equal_values
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one is other or bool(one == other) or bool(one != one and other != other)
