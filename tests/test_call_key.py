"""Equal keys for calls that do the same, none where that can't be known."""

import functools
import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stanza_compiler.call_key import CallKeys

X = torch.ones(2, 4)


def _key(target: Any, *args: Any, **kwargs: Any) -> Any:
    found = CallKeys().of(target, args, kwargs)
    return None if found is None else found.key


class Own(nn.Linear):
    pass


def test_equal_layers_on_equal_tensors_are_equal_calls() -> None:
    assert _key(nn.Linear(4, 3), X) == _key(nn.Linear(4, 3), torch.zeros(2, 4)) is not None
    assert _key(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), X) == _key(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), X)
    assert _key("relu", X) == _key("relu", torch.zeros(2, 4)) is not None
    assert _key(F.gelu, X) == _key(F.gelu, torch.zeros(2, 4)) is not None
    assert _key(torch.cat, [X, X + 1], dim=1) == _key(torch.cat, [X, X + 2], dim=1)


@pytest.mark.parametrize(
    "other",
    [
        lambda: _key(nn.Linear(4, 5), X),
        lambda: _key(nn.Linear(4, 3, bias=False), X),
        lambda: _key(nn.Linear(4, 3).eval(), X),
        lambda: _key(nn.Linear(4, 3).requires_grad_(False), X),
        lambda: _key(nn.Linear(4, 3, dtype=torch.float64), X),
        lambda: _key(nn.Linear(4, 3), torch.ones(3, 4)),
        lambda: _key(nn.Linear(4, 3), torch.ones(4, 2).t()),
        lambda: _key(nn.Linear(4, 3), X.clone().requires_grad_()),
        lambda: _key(nn.Linear(4, 3), X.double()),
        lambda: _key(nn.Linear(4, 3), input=X),
    ],
)
def test_whatever_shapes_or_costs_depend_on_makes_another_call(other: Any) -> None:
    assert other() != _key(nn.Linear(4, 3), X)


def test_hyper_parameters_arguments_and_modes_make_other_calls() -> None:
    assert _key(nn.Dropout(0.1), X) != _key(nn.Dropout(0.2), X)
    assert _key(F.dropout, X, 1) != _key(F.dropout, X, True)
    assert _key(operator.getitem, X, slice(0, 1)) != _key(operator.getitem, X, slice(0, 2))
    with torch.no_grad():
        quiet = _key(nn.ReLU(), X)
    assert quiet != _key(nn.ReLU(), X)


def test_who_shares_memory_with_whom_makes_another_call() -> None:
    assert _key(torch.add, X, X) != _key(torch.add, X, X.clone())
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    assert _key(tied, X) != _key(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), X)


def test_operands_come_in_the_order_that_equal_calls_share() -> None:
    layer = nn.Linear(4, 3)
    found = CallKeys().of(layer, (X,), {})
    assert found is not None
    assert [id(tensor) for tensor in found.operands] == [id(layer.weight), id(layer.bias), id(X)]


def _hooked() -> nn.Module:
    module = nn.Linear(4, 3)
    module.register_forward_hook(lambda *_: None)
    return module


def _patched() -> nn.Module:
    module = nn.ReLU()
    module.forward = lambda x: x  # type: ignore[method-assign]
    return module


@pytest.mark.parametrize(
    "call",
    [
        lambda: _key(Own(4, 3), X),
        lambda: _key(nn.Sequential(nn.ReLU(), Own(4, 3)), X),
        lambda: _key(_hooked(), X),
        lambda: _key(_patched(), X),
        lambda: _key(_hooked, X),
        lambda: _key(functools.partial(F.relu, inplace=False), X),
        lambda: _key(torch.mul, X, object()),
        lambda: _key(torch.relu, X.to_sparse()),
        lambda: _key(nn.TransformerEncoderLayer(4, 2, activation=lambda x: x), X),
    ],
    ids=[
        "own class",
        "own class inside",
        "hook",
        "patched",
        "own function",
        "partial",
        "object",
        "sparse",
        "activation",
    ],
)
def test_a_call_that_more_may_influence_has_no_key(call: Any) -> None:
    assert call() is None


def test_under_autocast_no_call_has_a_key() -> None:
    with torch.autocast("cpu"):
        assert _key(nn.ReLU(), X) is None
