"""Containers apart from the values in them."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from stanza_compiler.structure import ByMode, Fixed, Slot, put_together, renumbered, take_apart


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Report:
    score: Any
    parts: Any = None


A, B, C = torch.zeros(1), torch.ones(2), torch.full((3,), 2.0)


@pytest.mark.parametrize(
    "value",
    [
        A,
        (A, None, B),
        [A, [B, "text", 3]],
        {"a": A, "b": {"c": (B,)}},
        OrderedDict(z=A, a=B),
        Pair(A, {"x": B}),
        Report(A, [B, C]),
    ],
)
def test_what_was_taken_apart_is_put_together_again(value: Any) -> None:
    values, structure = take_apart(value, lambda item: isinstance(item, torch.Tensor))
    assert all(isinstance(item, torch.Tensor) for item in values)
    again = put_together(structure, values, training=True)
    assert type(again) is type(value)
    assert repr(again) == repr(value)


def test_an_object_that_may_hide_tensors_is_refused() -> None:
    class Cache:
        def __init__(self) -> None:
            self.key = A

    with pytest.raises(TypeError, match="a Cache in the output"):
        take_apart((A, Cache()), lambda item: isinstance(item, torch.Tensor))


def test_each_mode_has_its_own_structure() -> None:
    _, both = take_apart((A, B), lambda item: isinstance(item, torch.Tensor))
    structure = ByMode(both, renumbered(Slot(0), [1]))
    assert put_together(structure, ["main", "aux"], training=True) == ("main", "aux")
    assert put_together(structure, ["main", "aux"], training=False) == "aux"
    assert put_together(Fixed(None), [], training=False) is None
