"""What a name of an ONNX graph stands for while the graph is imported."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

Sizes = np.ndarray[Any, np.dtype[Any]]
"""Whole numbers, at least one of which follows from the batch size: an array of int and Traced."""


class UnsupportedError(Exception):
    """What of a node can't be imported, told without naming the node."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A tensor known before the model runs: an initialiser, which may train, or what follows from constants.

    `name` is that of the ONNX value.
    """

    tensor: torch.Tensor
    name: str
    trains: bool = False


@dataclass(frozen=True, slots=True)
class Ref:
    """What an input or an earlier step gave, by its number."""

    index: int


@dataclass(frozen=True, slots=True)
class Attr:
    """A parameter or buffer of the module, by its dotted name."""

    path: str


@dataclass(frozen=True, slots=True)
class Layer:
    """A module inside of the module, by its dotted name; it is called."""

    path: str


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """A value of the run: where it comes from and what it is at each of two batch sizes.

    A sample is a tensor on the meta device, or a number that follows from the batch size.
    """

    ref: Ref | Attr
    samples: tuple[Any, Any]


Value = Known | Traced | Sizes
Number = int | float | bool | Traced
Target = Callable[..., Any] | str | Layer


def shape_of(value: Value) -> tuple[int | None, ...]:
    """Sizes by axis, None where they follow from the batch size."""
    match value:
        case Known():
            return tuple(value.tensor.shape)
        case Traced():
            one, other = (sample.shape for sample in value.samples)
            return tuple(size if size == twin else None for size, twin in zip(one, other, strict=True))
    return tuple(value.shape)


def rank_of(value: Value) -> int:
    return len(shape_of(value))


def dtype_of(value: Value) -> torch.dtype:
    match value:
        case Known():
            return value.tensor.dtype
        case Traced():
            dtype: torch.dtype = value.samples[0].dtype
            return dtype
    return torch.int64


def axis_of(value: Value, axis: int) -> int:
    """The axis counted from the front."""
    return axis % rank_of(value) if rank_of(value) else 0


def integers(value: Value) -> list[Any]:
    """The whole numbers of a flat list of sizes, axes or indices: int, or Traced where they follow from the batch.

    Raises UnsupportedError for numbers that the model computes while it runs.
    """
    match value:
        case Known():
            return list(value.tensor.flatten().tolist())
        case Traced():
            raise UnsupportedError("takes sizes or axes that the model computes from its inputs")
    return list(value.flatten())


def constant_integers(value: Value) -> list[int]:
    """As `integers`, where nothing may follow from the batch size."""
    found = integers(value)
    if any(isinstance(number, Traced) for number in found):
        raise UnsupportedError("takes axes or counts that follow from the batch size")
    return found


def constant(value: Value) -> torch.Tensor:
    """The tensor of a setting, such as a bound or a ratio."""
    if isinstance(value, Known):
        return value.tensor
    raise UnsupportedError("takes a setting that the model computes from its inputs")


def number(value: Value) -> Any:
    """The one number of a setting, as Python has it."""
    return plain_number(constant(value))


def plain_number(tensor: torch.Tensor) -> Any:
    """The number of a tensor with one element; a float32 as the shortest decimal that rounds to it."""
    return shortest(tensor.item()) if tensor.dtype == torch.float32 else tensor.item()


def shortest(value: float) -> float:
    """The shortest decimal that float32 can't tell from `value`: 0.1 for 0.10000000149011612."""
    return float(str(np.float32(value)))


def sizes_of(value: Value) -> Sizes:
    """Whole numbers as an array of int and Traced."""
    if isinstance(value, Known):
        return np.array(value.tensor.numpy(), dtype=object)
    if isinstance(value, Traced):
        raise UnsupportedError("mixes sizes with numbers that the model computes from its inputs")
    return value


def settled(array: Sizes, name: str) -> Known | Sizes:
    """The array, or a tensor when nothing in it follows from the batch size."""
    if any(isinstance(item, Traced) for item in array.flat):
        return array
    return Known(torch.from_numpy(np.array(array, dtype=np.int64)), name)


def array_of(items: list[Any]) -> Sizes:
    """One axis of int and Traced."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def is_fixed(*values: object) -> bool:
    """Whether nothing of it depends on the run: no Traced and nothing that trains."""
    return not any(isinstance(value, Traced) or (isinstance(value, Known) and value.trains) for value in values)


def is_uniform(tensor: torch.Tensor) -> bool:
    """Whether all elements are the same."""
    flat = tensor.flatten()
    return bool(flat[0] == flat[-1]) and bool((flat == flat[0]).all())


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """`function` of every leaf of nested tuples, lists, dicts and slices."""
    match value:
        case tuple() | list():
            return type(value)([mapped(function, item) for item in value])
        case dict():
            return {key: mapped(function, item) for key, item in value.items()}
        case slice():
            return slice(*(mapped(function, part) for part in (value.start, value.stop, value.step)))
    return function(value)


def bound(target: Target, args: Any, root: nn.Module) -> tuple[Callable[..., Any], Any]:
    """What to call, on which arguments: a function, a method of the first argument or a layer of `root`."""
    if isinstance(target, Layer):
        return root.get_submodule(target.path), args
    if isinstance(target, str):
        return getattr(args[0], target), args[1:]
    return target, args
