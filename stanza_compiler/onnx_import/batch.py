"""What the inputs of a graph are, and which of their axes is the batch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx
import torch

from stanza_compiler.errors import LoadError
from stanza_compiler.onnx_import.file import OnnxFile, torch_dtype
from stanza_compiler.onnx_import.importer import Argument
from stanza_compiler.onnx_import.names import argument
from stanza_compiler.options import InputSpec

EXAMPLE_BATCH = 4
APART = 840
"""The second batch size in work is so many times the first: far enough for no quotient of both to be the same."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The graph's inputs, an example of each, and their batch axes by name.

    `stored_batch` is the batch size that the file was exported for, None where it takes any.
    """

    arguments: tuple[Argument, ...]
    specs: tuple[InputSpec, ...]
    batch_axes: dict[str, int | None]
    stored_batch: int | None


@dataclass(frozen=True, slots=True)
class _Declared:
    """An input as the file declares it; a size is None where it is free, or a name that stands for it."""

    onnx_name: str
    name: str
    dtype: torch.dtype
    sizes: tuple[int | str | None, ...]

    def __str__(self) -> str:
        return "x".join(str(size or "?") for size in self.sizes) + f":{str(self.dtype).removeprefix('torch.')}"


def describe_inputs(
    file: OnnxFile, given: Sequence[InputSpec], given_axes: Mapping[str, int | None], place: str
) -> Inputs:
    """Find the batch: the axis with "batch" in its name, else the first one where it is free, else that of most inputs.

    A file that was exported for one batch size is taken for any. Raises LoadError for sizes that are free and not
    given, and for given ones that don't fit.
    """
    declared = _declared(file, place)
    if not declared:
        raise LoadError(place, "it has no inputs", "export a model with a tensor input")
    if given and len(given) != len(declared):
        names = ", ".join(f"{each.name} {each}" for each in declared)
        raise LoadError(place, f"it has {len(declared)} inputs and --input is given {len(given)} times", names)
    axes = _batch_axes(declared, given_axes)
    at_axis = [
        each.sizes[axis] for each in declared if (axis := axes[each.name]) is not None and axis < len(each.sizes)
    ]
    stored = next((size for size in at_axis if isinstance(size, int)), None) if _are_whole(at_axis) else None
    batch = EXAMPLE_BATCH if stored in (None, 1) else stored
    if given:
        specs = [_fitting(each, spec, axes[each.name], place) for each, spec in zip(declared, given, strict=True)]
    else:
        specs = [_drawn_up(each, axes[each.name], batch or 1, place) for each in declared]
    arguments = tuple(
        Argument(each.onnx_name, each.name, each.dtype, (spec.shape, _enlarged(spec.shape, axes[each.name])))
        for each, spec in zip(declared, specs, strict=True)
    )
    return Inputs(arguments, tuple(specs), axes, stored)


def _declared(file: OnnxFile, place: str) -> list[_Declared]:
    found: list[_Declared] = []
    for value in file.graph.input:
        if value.name in file.initializers:  # before opset 9 these were listed too
            continue
        name = argument(value.name, [each.name for each in found])
        dtype = torch_dtype(value.type.tensor_type.elem_type) if value.type.HasField("tensor_type") else None
        if dtype is None or not value.type.tensor_type.HasField("shape"):
            what = f"input {value.name!r} is no tensor of known axes and type"
            raise LoadError(place, what, "export it with one")
        sizes = [_size(dimension) for dimension in value.type.tensor_type.shape.dim]
        found.append(_Declared(value.name, name, dtype, tuple(sizes)))
    return found


def _size(dimension: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dimension.HasField("dim_value") and dimension.dim_value > 0:
        return int(dimension.dim_value)
    return dimension.dim_param or None


def _batch_axes(declared: Sequence[_Declared], given: Mapping[str, int | None]) -> dict[str, int | None]:
    symbols = [size for each in declared for size in each.sizes if isinstance(size, str)]
    named = next((symbol for symbol in symbols if "batch" in symbol.lower()), None)
    leading = [each.sizes[0] for each in declared if each.sizes]
    free = [size for size in leading if not isinstance(size, int)]
    common = Counter(leading).most_common(1)
    axes: dict[str, int | None] = {}
    for each in declared:
        if named is not None:
            axes[each.name] = each.sizes.index(named) if named in each.sizes else None
        else:
            first = each.sizes[0] if each.sizes else 0
            is_batch = not isinstance(first, int) if free else bool(common) and first == common[0][0]
            axes[each.name] = 0 if each.sizes and is_batch else None
    return axes | {name: axis for name, axis in given.items() if name in axes}


def _are_whole(sizes: Sequence[int | str | None]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _fitting(each: _Declared, spec: InputSpec, axis: int | None, place: str) -> InputSpec:
    """The given sizes, which have to be those of the file but for the batch and what is free."""
    fits = (
        len(spec.shape) == len(each.sizes)
        and getattr(torch, spec.dtype) == each.dtype
        and all(
            not isinstance(own, int) or own == size or index == axis
            for index, (own, size) in enumerate(zip(each.sizes, spec.shape, strict=True))
        )
    )
    if not fits:
        sizes = "x".join(map(str, spec.shape))
        what = f"--input {sizes}:{spec.dtype} doesn't fit its input {each.name}"
        raise LoadError(place, what, f"it takes {each}")
    return spec


def _drawn_up(each: _Declared, axis: int | None, batch: int, place: str) -> InputSpec:
    sizes = [batch if index == axis else size for index, size in enumerate(each.sizes)]
    free = [str(size or "?") for size in sizes if not isinstance(size, int)]
    if free:
        sized = replace(each, sizes=tuple(sizes))
        remedy = f"pass --input for each input, such as {sized}"
        raise LoadError(place, f"input {each.name} leaves the sizes {', '.join(free)} free", remedy)
    shape = tuple(size for size in sizes if isinstance(size, int))
    return InputSpec(shape, str(each.dtype).removeprefix("torch."))


def _enlarged(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return tuple(size * APART if index == axis else size for index, size in enumerate(shape))
