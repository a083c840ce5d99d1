"""Extra states that a program can keep, and those that it can't."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stanza_compiler.errors import EmitError
from stanza_compiler.fixed_state import fixed_states, has_extra_state
from tests.source_of import source_of


class Stateful(nn.Module):
    """Its extra state is what `read` gives."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.calls, self.history = 0, [0]

    def read(self) -> Any:
        return {"tag": "v2", "sizes": (2, [3.0, None]), "table": torch.arange(3)}

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.history[0] += 1
        self.seen += 1
        return x * self.w

    def get_extra_state(self) -> Any:
        return self.read()

    def set_extra_state(self, state: Any) -> None:
        raise AssertionError


class Unknown:
    pass


def states_of(module: nn.Module) -> dict[str, Any]:
    source = source_of(nn.Sequential(nn.Linear(2, 2), module), torch.ones(3, 2))
    return fixed_states(source.module, source.call)


def test_what_stays_as_it_is_is_found_by_path() -> None:
    module = Stateful()
    states = states_of(module)
    assert list(states) == ["1"]
    assert states["1"]["sizes"] == (2, [3.0, None])
    assert (module.calls, module.history, module.seen.item()) == (0, [0], 0)


def test_a_model_without_extra_state_has_none() -> None:
    assert states_of(nn.Tanh()) == {}
    assert not has_extra_state(nn.Tanh())
    assert has_extra_state(Stateful())


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (lambda self: self.calls, "forward() changes its extra state, which a program fixes"),
        (lambda self: self.history, "forward() changes its extra state"),
        (lambda self: self.seen, "forward() changes its extra state"),
        (lambda self: {"training": self.training}, "forward() changes its extra state"),
        (lambda self: self.w.detach().sum().item(), "its extra state depends on its tensors"),
        (lambda self: self.w.detach(), "its extra state depends on its tensors"),
        (lambda self: self.w * 2, "its extra state depends on its tensors"),
        (lambda self: Unknown(), "its extra state, a Unknown, can't be read back without running code"),
        (lambda self: lambda: None, "its extra state, a function, can't be read back"),
    ],
)
def test_what_training_changes_or_a_file_cannot_hold_is_refused(read: Any, told: str) -> None:
    kind = type("Changing", (Stateful,), {"read": read})
    with pytest.raises(EmitError) as caught:
        states_of(kind())
    assert str(caught.value).startswith(f"1: {told}")
