"""Names and values for the templates."""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import pytest
import torch
from torch import nn

from stanza_compiler.call import describe_call
from stanza_compiler.codegen import call_signature, example_text, sorted_imports, targets_text
from stanza_compiler.errors import EmitError


def bound(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Callable[..., Any], str]:
    """The generated bind_inputs of a module with that forward, and its text."""
    module = nn.Module()
    module.forward = forward
    signature = call_signature(describe_call(module, args, kwargs, batch_axes={}, place="model.py"))
    lines = [f"    {line}" for line in signature.checks]
    lines.append("    return {" + ", ".join(f"{name!r}: {expression}" for name, expression in signature.names) + "}")
    text = f"def bind_inputs({signature.parameters}):\n" + "\n".join(lines)
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    return namespace["bind_inputs"], text


def test_the_generated_call_takes_what_the_model_takes() -> None:
    def forward(x: Any, *rest: Any, gate: Any, mask: Any = None, power: int = 2, **extra: Any) -> None: ...

    x, more, gate, offset = (torch.full((2, 3), float(value)) for value in range(4))
    bind, _ = bound(forward, {"a": [x]}, more, gate=gate, offset=offset)
    named = bind({"a": [x]}, more, gate=gate, offset=offset)
    assert list(named) == ["x_a_0", "rest_0", "gate", "extra_offset"]
    assert all(torch.equal(one, other) for one, other in zip(named.values(), (x, more, gate, offset), strict=True))


def test_defaults_that_python_writes_otherwise_are_code_all_the_same() -> None:
    class Level(IntEnum):
        LOW = 1

    def forward(x: Any, fill: float = float("-inf"), level: int = Level.LOW) -> None: ...

    x = torch.ones(2, 3)
    bind, _ = bound(forward, x)
    assert torch.equal(bind(x)["x"], x)
    with pytest.raises(ValueError, match="fill is fixed to -inf"):
        bind(x, fill=0.0)


def test_what_is_no_tensor_is_held_to_the_compiled_value() -> None:
    def forward(x: Any, mode: str, mask: Any = None) -> None: ...

    bind, _ = bound(forward, torch.ones(2), 'it\'s "quoted"')
    with pytest.raises(ValueError, match="mode is fixed"):
        bind(torch.ones(2), "other")
    with pytest.raises(ValueError, match="mask is fixed to None"):
        bind(torch.ones(2), 'it\'s "quoted"', torch.ones(2))
    assert list(bind(torch.ones(2), 'it\'s "quoted"')) == ["x"]


@pytest.mark.parametrize(
    ("tensor", "axis", "text"),
    [
        (torch.zeros(4, 3, 8), 0, 'Example("float32", (3, 8))'),
        (torch.zeros(5, 4), 1, 'Example("float32", (5,), batch_axis=1)'),
        (torch.tensor([[3, 9], [7, 5]]), 0, 'Example("int64", (2,), low=3, high=9)'),
        (torch.zeros(6, dtype=torch.bfloat16), None, 'Example("bfloat16", (6,), batch_axis=None)'),
        (torch.tensor([True, False]), 0, 'Example("bool", ())'),
    ],
)
def test_synthetic_items_have_the_examples_sizes_and_bounds(tensor: torch.Tensor, axis: int | None, text: str) -> None:
    assert example_text(tensor, axis) == text


def test_targets_keep_their_containers() -> None:
    one = torch.zeros(4, 2)
    assert targets_text({"it's": (one,), "b": [one, None]}) == (
        '{"it\'s": (Example("float32", (2,)),), "b": [Example("float32", (2,)), None]}'
    )
    with pytest.raises(EmitError, match="object can't be a target"):
        targets_text(object())


def test_imports_come_once_the_standard_library_first() -> None:
    lines = ["import torch", "from torch import nn", "import operator", "import torch"]
    assert sorted_imports(lines) == ("import operator", "", "import torch", "from torch import nn")
