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
    inputs that are not `given` by the user are tried, those with few changes first. If none works either, the call
    stays as it was.
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
    """Other assignments in which every batched axis has one size, the likeliest first.

    A changed input costs 1, and so does one without a batch axis: what most inputs share is the batch.

    >>> list(itertools.islice(_others([(4, 7), (4, 4)], (0, 0), [True, True]), 2))
    [(0, 1), (0, None)]
    """
    seen = {usual, (None,) * len(shapes)}
    for cost, size in itertools.product(range(2 * len(shapes) + 1), _sizes(shapes, usual, is_free)):
        options = [
            [((axis != own) + (axis is None), axis) for axis in (*_axes_of(size, shape), None)] if free else [(0, own)]
            for shape, own, free in zip(shapes, usual, is_free, strict=True)
        ]
        for axes in _of_cost(cost, options):
            if axes not in seen:
                seen.add(axes)
                yield axes


def _of_cost(cost: int, options: list[list[tuple[int, int | None]]]) -> Iterator[Axes]:
    """All ways to take one of the (cost, axis) of each input that cost as much together."""
    if not options:
        yield from [()] if cost == 0 else []
        return
    for own, axis in options[0]:
        if own <= cost:
            yield from ((axis, *others) for others in _of_cost(cost - own, options[1:]))


def _sizes(shapes: list[tuple[int, ...]], usual: Axes, is_free: list[bool]) -> list[int]:
    """What the batch may be: the size that the user's axes have, else the usual one, then leading sizes, then any."""
    held = [(shape[axis], free) for shape, axis, free in zip(shapes, usual, is_free, strict=True) if axis is not None]
    fixed = [size for size, free in held if not free]
    if fixed:
        return fixed[:1]
    leading = Counter(shape[0] for shape in shapes if shape)
    anywhere = Counter(size for shape in shapes for size in set(shape))
    ordered = [
        *(size for size, _ in held[:1]),
        *(size for size, _ in leading.most_common()),
        *(size for size, _ in sorted(anywhere.items(), key=lambda item: -item[1])),
    ]
    return list(dict.fromkeys(ordered))


def _axes_of(size: int, shape: tuple[int, ...]) -> list[int]:
    return [axis for axis, length in enumerate(shape) if length == size]
