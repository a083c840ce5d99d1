"""Tensors in nested dicts, lists and tuples."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Slot:
    """Where leaf `index` stood in a flattened tree."""

    index: int


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with `function` applied to everything that is no dict, list or tuple; mappings become dicts."""
    if isinstance(tree, Mapping):
        return {key: map_leaves(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_leaves(function, value) for value in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_leaves(function, value) for value in tree)
    return function(tree)


def flatten(tree: Any) -> tuple[tuple[Tensor, ...], Any]:
    """The tensors of a tree, and the tree with a Slot in place of each."""
    tensors: list[Tensor] = []

    def take(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        tensors.append(leaf)
        return Slot(len(tensors) - 1)

    template = map_leaves(take, tree)
    return tuple(tensors), template


def unflatten(template: Any, tensors: tuple[Tensor, ...]) -> Any:
    """The tree whose `flatten` gave `template`, with other tensors."""
    return map_leaves(lambda leaf: tensors[leaf.index] if isinstance(leaf, Slot) else leaf, template)


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested containers, dataclasses included."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for entry in fields(value):
            yield from tensors_of(getattr(value, entry.name))
