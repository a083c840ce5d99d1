"""Which axis of each input the batch is on, where the usual guess does not hold."""

import itertools
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace

from torch import nn

from stanza_compiler.call import Call
from stanza_compiler.runtime.tree import tensors_of
from stanza_compiler.undisturbed import preserved, seeded

TRIES = 24

Axes = tuple[int | None, ...]


def settle_batch_axes(module: nn.Module, call: Call, given: Collection[str]) -> tuple[Call, str]:
    """A call whose batch the model takes in other sizes, and a note when that took other axes than the usual ones.

    The model runs at batch 2 and 3. Where it fails, or its output is as large at both, up to TRIES other axes of the
    inputs that are not `given` by the user are tried, those with the fewest changes first. If none works either, the
    call stays as it was.
    """
    usual = tuple(leaf.batch_axis for leaf in call.leaves)
    is_free = [leaf.name not in given for leaf in call.leaves]
    has_data = not any(parameter.is_meta for parameter in module.parameters())
    if len(usual) < 2 or not any(is_free) or not has_data or _runs(module, call):
        return call, ""
    shapes = [tuple(leaf.example.shape) for leaf in call.leaves]
    for axes in itertools.islice(_others(shapes, usual, is_free), TRIES):
        other = replace(
            call, leaves=tuple(replace(leaf, batch_axis=axis) for leaf, axis in zip(call.leaves, axes, strict=True))
        )
        if _runs(module, other):
            chosen = ", ".join(f"{leaf.name}={leaf.batch_axis}".lower() for leaf in other.leaves)
            return other, (
                f"batch axes {chosen}: with axis 0 of the inputs of the most common leading size "
                "the model takes no other batch; --batch-axis overrides them"
            )
    return call, ""


def _runs(module: nn.Module, call: Call) -> bool:
    """Whether the model takes batches of 2 and 3, and more comes out of the larger one."""
    shapes = []
    for batch in (2, 3):
        try:
            with preserved(module), seeded(0):
                args, kwargs = call.arguments(batch)
                shapes.append([tensor.shape for tensor in tensors_of(module(*args, **kwargs))])
        except Exception:  # whatever the model raises, it does not take that batch
            return False
    small, large = shapes
    if [len(shape) for shape in small] != [len(shape) for shape in large]:
        return False
    sizes = [pair for one, other in zip(small, large, strict=True) for pair in zip(one, other, strict=True)]
    return not sizes or any(one and 3 * one == 2 * other for one, other in sizes)


def _others(shapes: list[tuple[int, ...]], usual: Axes, is_free: list[bool]) -> Iterator[Axes]:
    """Other assignments, every batched axis of one size: for each size the plain ones, then with more and more changes.

    >>> next(_others([(3, 7), (4, 3), (4, 3)], (None, 0, 0), [True] * 3))
    (0, None, None)
    """
    guesses = [(size, axes) for size in _sizes(shapes, usual, is_free) for axes in _guesses(size, shapes)]
    guesses = [(size, tuple(map(_pick, is_free, axes, usual))) for size, axes in guesses]
    seen = {usual}
    for changes in range(len(shapes) + 1):
        for size, axes in guesses:
            options = [
                [other for other in (*_axes_of(size, shape), None) if other != axis] if free else []
                for shape, axis, free in zip(shapes, axes, is_free, strict=True)
            ]
            for changed in itertools.combinations(range(len(shapes)), changes):
                for values in itertools.product(*(options[index] for index in changed)):
                    other = list(axes)
                    for index, axis in zip(changed, values, strict=True):
                        other[index] = axis
                    if tuple(other) not in seen and any(axis is not None for axis in other):
                        seen.add(tuple(other))
                        yield tuple(other)


def _pick(free: bool, axis: int | None, usual: int | None) -> int | None:
    return axis if free else usual


def _sizes(shapes: list[tuple[int, ...]], usual: Axes, is_free: list[bool]) -> list[int]:
    """What the batch may be: the size that the user's axes have, else the usual one, then leading sizes, then any."""
    held = [shape[axis] for shape, axis in zip(shapes, usual, strict=True) if axis is not None]
    fixed = [
        shape[axis] for shape, axis, free in zip(shapes, usual, is_free, strict=True) if axis is not None and not free
    ]
    if fixed:
        return fixed[:1]
    leading = Counter(shape[0] for shape in shapes if shape)
    anywhere = Counter(size for shape in shapes for size in set(shape))
    ordered = [*held[:1], *(size for size, _ in leading.most_common()), *(size for size, _ in anywhere.most_common())]
    return list(dict.fromkeys(ordered))


def _guesses(size: int, shapes: list[tuple[int, ...]]) -> list[Axes]:
    """Axis 0 wherever it has that size, or the first axis that has it."""
    first = [next(iter(_axes_of(size, shape)), None) for shape in shapes]
    return [tuple(0 if axis == 0 else None for axis in first), tuple(first)]


def _axes_of(size: int, shape: tuple[int, ...]) -> list[int]:
    return [axis for axis, length in enumerate(shape) if length == size]
