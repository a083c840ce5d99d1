"""The containers of a model's output, apart from the values in them."""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of value number `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class Fixed:
    """Something that is no tensor, as it was when the model was traced."""

    value: Any


@dataclass(frozen=True, slots=True)
class Container:
    """A `kind` made of `children`; `names` are a mapping's keys or a class's fields, empty for a sequence."""

    kind: type
    names: tuple[Any, ...]
    children: tuple["Structure", ...]

    @property
    def is_record(self) -> bool:
        """A mapping of a library's own class, such as transformers' ModelOutput: generated code has it as a Record."""
        return issubclass(self.kind, dict) and self.kind not in (dict, OrderedDict)


@dataclass(frozen=True, slots=True)
class ByMode:
    """One structure while training and another one afterwards."""

    training: "Structure"
    evaluation: "Structure"


Structure = Slot | Fixed | Container | ByMode


def take_apart(value: Any, is_value: Callable[[Any], bool]) -> tuple[list[Any], Structure]:
    """The values in nested containers, in order, and the structure that holds them.

    Known containers are tuples, NamedTuples, lists, mappings and dataclasses. Raises TypeError for an object that
    might hide tensors.
    """
    values: list[Any] = []

    def visit(item: Any) -> Structure:
        if is_value(item):
            values.append(item)
            return Slot(len(values) - 1)
        if isinstance(item, _PLAIN):
            return Fixed(item)
        if isinstance(item, dict):
            return Container(type(item), tuple(item), tuple(map(visit, item.values())))
        if isinstance(item, tuple) and hasattr(item, "_fields"):
            return Container(type(item), tuple(item._fields), tuple(map(visit, item)))
        if type(item) in (tuple, list):
            return Container(type(item), (), tuple(map(visit, item)))
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            names = tuple(field.name for field in dataclasses.fields(item) if field.init)
            return Container(type(item), names, tuple(visit(getattr(item, name)) for name in names))
        raise TypeError(f"a {type(item).__name__} in the output")

    return values, visit(value)


def put_together(structure: Structure, values: Sequence[Any], *, training: bool) -> Any:
    """The object that take_apart took apart."""
    match structure:
        case Slot(index):
            return values[index]
        case Fixed(value):
            return value
        case ByMode():
            chosen = structure.training if training else structure.evaluation
            return put_together(chosen, values, training=training)
    children = [put_together(child, values, training=training) for child in structure.children]
    if issubclass(structure.kind, dict):
        pairs = dict(zip(structure.names, children, strict=True))
        make: Any = structure.kind
        return make(**pairs) if dataclasses.is_dataclass(structure.kind) else make(pairs)
    if structure.names:
        made: Any = structure.kind(**dict(zip(structure.names, children, strict=True)))
        return made
    return tuple(children) if structure.kind is tuple else children


def slots(structure: Structure) -> Iterator[int]:
    """Numbers of the values that a structure holds, in order."""
    match structure:
        case Slot(index):
            yield index
        case Container():
            for child in structure.children:
                yield from slots(child)
        case ByMode():
            yield from slots(structure.training)
            yield from slots(structure.evaluation)


def renumbered(structure: Structure, numbers: Sequence[int]) -> Structure:
    """The same structure with value i called `numbers[i]`."""
    match structure:
        case Slot(index):
            return Slot(numbers[index])
        case Container():
            children = tuple(renumbered(child, numbers) for child in structure.children)
            return dataclasses.replace(structure, children=children)
        case ByMode():
            return ByMode(renumbered(structure.training, numbers), renumbered(structure.evaluation, numbers))
    return structure
