"""How the model is called: the named tensors in the structure of its arguments."""

import inspect
import itertools
import keyword
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stanza_compiler.errors import LoadError
from stanza_compiler.options import InputSpec
from stanza_compiler.text import quoted


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of a call: its name in generated code, the expression that reaches it, the example itself."""

    name: str
    expression: str
    example: torch.Tensor
    batch_axis: int | None


@dataclass(frozen=True, slots=True)
class Constant:
    """One value of a call that is no tensor and therefore fixed when the model is traced."""

    expression: str
    value: Any


@dataclass(frozen=True, slots=True)
class Call:
    """One example call of a module: `signature(*args, **kwargs)` with its tensors taken out and named."""

    signature: inspect.Signature
    leaves: tuple[Leaf, ...]
    constants: tuple[Constant, ...]
    rebuild: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]]

    @property
    def batch_size(self) -> int:
        """The example's batch; 1 when no input has a batch axis."""
        sizes = (leaf.example.shape[leaf.batch_axis] for leaf in self.leaves if leaf.batch_axis is not None)
        return int(next(iter(sizes), 1))

    def tensors(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors of a call's arguments, one per leaf."""
        flat = pytree.tree_leaves((tuple(args), dict(kwargs)))
        return [value for value in flat if isinstance(value, torch.Tensor)]

    def arguments(self, batch: int | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Fresh (args, kwargs) of the example, its items repeated or cut to `batch` of them."""
        return self.rebuild([_resized(leaf, batch or self.batch_size) for leaf in self.leaves])

    def part(self, batch: int, start: int, stop: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The items start..stop of the `batch` that arguments(batch) gives."""
        values = []
        for leaf in self.leaves:
            whole = _resized(leaf, batch)
            axis = leaf.batch_axis
            values.append(whole if axis is None else whole.narrow(axis, start, stop - start).clone())
        return self.rebuild(values)


def _resized(leaf: Leaf, batch: int) -> torch.Tensor:
    if leaf.batch_axis is None:
        return leaf.example.detach().clone()
    items = torch.arange(batch, device=leaf.example.device) % leaf.example.shape[leaf.batch_axis]
    return leaf.example.detach().index_select(leaf.batch_axis, items)


def drawn(spec: InputSpec, generator: torch.Generator) -> torch.Tensor:
    """A tensor as an `--input` describes it: normally distributed, or whole numbers from its range, [0, 2) without."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(spec.shape, generator=generator, dtype=dtype)
    low, high = spec.low or 0, 2 if spec.high is None else spec.high
    return torch.randint(low, high, spec.shape, generator=generator).to(dtype)


def describe_call(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    batch_axes: Mapping[str, int | None],
    place: str,
) -> Call:
    """Name the tensors of `module(*args, **kwargs)` and find their batch axes.

    The batch axis is axis 0 of every tensor whose size there is the most common leading size;
    `batch_axes` (by name) overrides it. Raises LoadError when the arguments don't fit the forward's signature, hold no
    tensor, or an override names none of them.
    """
    signature = inspect.signature(module.forward)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise LoadError(
            place, f"the example inputs don't fit forward{signature}: {error}", "fix example_inputs()"
        ) from error
    roots = _root_expressions(bound)
    flat, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    paths = [path for path, _ in pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))[0]]
    expressions = [_expression(path, roots) for path in paths]
    tensors = [isinstance(value, torch.Tensor) for value in flat]
    if not any(tensors):
        raise LoadError(place, "the example inputs hold no tensor", "return a tuple of tensors from example_inputs()")
    names = _unique_names([text for text, is_tensor in zip(expressions, tensors, strict=True) if is_tensor])
    axes = _batch_axes([value for value in flat if isinstance(value, torch.Tensor)], names, batch_axes, place)
    examples = iter(zip(names, axes, strict=True))
    leaves, constants = [], []
    for value, text in zip(flat, expressions, strict=True):
        if isinstance(value, torch.Tensor):
            name, axis = next(examples)
            leaves.append(Leaf(name, text, value, axis))
        else:
            constants.append(Constant(text, value))
    for name, parameter in signature.parameters.items():
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name not in bound.arguments and not variadic:
            constants.append(Constant(name, parameter.default))

    def rebuild(values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        remaining = iter(values)
        mixed = [next(remaining) if is_tensor else value for value, is_tensor in zip(flat, tensors, strict=True)]
        rebuilt: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(mixed, structure)
        return rebuilt

    return Call(signature, tuple(leaves), tuple(constants), rebuild)


def _root_expressions(bound: inspect.BoundArguments) -> tuple[list[str], dict[str, str]]:
    """How forward's own names reach each positional and each keyword argument."""
    positional: list[str] = []
    keywords: dict[str, str] = {}
    for name, parameter in bound.signature.parameters.items():
        if name not in bound.arguments:
            continue
        if parameter.kind == parameter.VAR_POSITIONAL:
            positional += [f"{name}[{index}]" for index in range(len(bound.arguments[name]))]
        elif parameter.kind == parameter.VAR_KEYWORD:
            keywords |= {key: f"{name}[{quoted(key)}]" for key in bound.arguments[name]}
        else:
            keywords[name] = name
            if parameter.kind != parameter.KEYWORD_ONLY:
                positional.append(name)
    return positional, keywords


def _expression(path: tuple[Any, ...], roots: tuple[list[str], dict[str, str]]) -> str:
    kind, first, *rest = path
    text = roots[0][first.idx] if kind.idx == 0 else roots[1][first.key]
    for key in rest:
        match key:
            case pytree.SequenceKey(idx=index):
                text += f"[{index}]"
            case pytree.MappingKey(key=name):
                text += f"[{quoted(name) if isinstance(name, str) else repr(name)}]"
            case _:
                text += f".{key.name}"
    return text


def _unique_names(expressions: list[str]) -> list[str]:
    """Identifiers made of the expressions: `batch["image"]["pixels"]` is batch_image_pixels."""
    names: list[str] = []
    for text in expressions:
        words = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in text).split("_")
        name = "_".join(filter(None, words)) or "input"
        if keyword.iskeyword(name) or not name.isidentifier() or name in ("self", "torch", "nn"):
            name = f"input_{name}"
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        names.append(next(free for free in itertools.chain([name], numbered) if free not in names))
    return names


def _batch_axes(
    examples: list[torch.Tensor], names: list[str], given: Mapping[str, int | None], place: str
) -> list[int | None]:
    unknown = sorted(set(given) - set(names), key=str)
    if unknown:
        raise LoadError(place, f"no input is called {unknown[0]}", f"the inputs are {', '.join(names)}")
    sizes = Counter(
        example.shape[0] for name, example in zip(names, examples, strict=True) if example.dim() and name not in given
    )
    common = sizes.most_common(1)[0][0] if sizes else None
    axes: list[int | None] = []
    for name, example in zip(names, examples, strict=True):
        axis = given[name] if name in given else (0 if example.dim() and example.shape[0] == common else None)
        if axis is not None and not 0 <= axis < example.dim():
            raise LoadError(place, f"input {name} has {example.dim()} axes, none is axis {axis}", "fix its batch axis")
        axes.append(axis)
    return axes
