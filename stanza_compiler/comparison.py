"""What a model does in one step, observed without leaving a trace in it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from stanza_compiler.loader import Source
from stanza_compiler.runtime.loss import measure
from stanza_compiler.runtime.tree import tensors_of
from stanza_compiler.undisturbed import preserved as preserved
from stanza_compiler.undisturbed import put_back
from stanza_compiler.undisturbed import seeded as seeded

SEED = 7
GRADIENT_RTOL = 1e-4


@dataclass(frozen=True, slots=True)
class Observation:
    """Output tensors, loss, gradients by parameter name (None where none arrives) and buffers afterwards."""

    outputs: tuple[torch.Tensor, ...]
    structure: str
    loss: torch.Tensor | None
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]


def observe(
    module: nn.Module, source: Source, *, batch: int, training: bool, run: Callable[..., Any] | None = None
) -> Observation:
    """One training step's forward and backward, or one eval forward, on `batch` of the example's items.

    `module` is the model or what stands for it, `run` what calls it (the module itself by default); it is left as it
    was. Gradients come with `training` alone.
    """
    parameters = dict(module.named_parameters())
    with preserved(module), seeded(SEED):
        module.train(training)
        args, kwargs = source.call.arguments(batch)
        with torch.set_grad_enabled(training):
            output = (run or module)(*args, **kwargs)
        measured = measure(source.hooks, output, resized_targets(source.targets, batch), samples=batch)
        loss = measured.total / measured.count
        found: dict[str, torch.Tensor | None] = {}
        if training:
            wanted = {name: value for name, value in parameters.items() if value.requires_grad}
            if loss.requires_grad and wanted:
                values = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
                found = dict(zip(wanted, values, strict=True))
        return Observation(
            outputs=tuple(tensor.detach() for tensor in tensors_of(output)),
            structure=_structure(output),
            loss=loss.detach(),
            gradients=found,
            buffers={name: buffer.detach().clone() for name, buffer in module.named_buffers()},
        )


def repeats_itself(source: Source) -> bool:
    """Whether a second training forward, on the same buffers and random numbers, gives the same output."""
    module = source.module
    with preserved(module), torch.enable_grad():
        module.train()
        outputs = []
        for _ in range(2):
            kept = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
            args, kwargs = source.call.arguments()
            with seeded(SEED):
                outputs.append([tensor.detach().clone() for tensor in tensors_of(module(*args, **kwargs))])
            for name, buffer in module.named_buffers():
                if name in kept:
                    put_back(buffer, kept[name])
    first, second = outputs
    return len(first) == len(second) and all(map(_same, first, second))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, equal_nan=True)


def resized_targets(targets: Any, batch: int) -> Any:
    """The example's targets, repeated or cut along axis 0 to `batch` items."""

    def resized(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
            return leaf
        return leaf.index_select(0, torch.arange(batch) % leaf.shape[0])

    return pytree.tree_map(resized, targets)


def _structure(output: Any) -> str:
    """The output's containers, their keys and order; mappings all count as dict."""
    match output:
        case dict():
            return "{" + ", ".join(f"{key!r}: {_structure(value)}" for key, value in output.items()) + "}"
        case tuple() | list():
            name = type(output).__name__
            return f"{name}(" + ", ".join(map(_structure, output)) + ")"
        case torch.Tensor():
            return "tensor"
        case _ if hasattr(output, "__dataclass_fields__"):
            fields = (f"{name}={_structure(getattr(output, name))}" for name in output.__dataclass_fields__)
            return f"{type(output).__name__}(" + ", ".join(fields) + ")"
    return repr(output)


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two observations are apart; `first` names what differs beyond the tolerance, empty when nothing does."""

    first: str
    forward: float
    gradient: float
    buffers_equal: bool


def difference(expected: Observation, actual: Observation) -> Difference:
    """Compare by torch.testing.assert_close's tolerances per dtype, gradients by a relative 1e-4."""
    problems: list[str] = []
    if expected.structure != actual.structure:
        problems.append(f"the output is {actual.structure[:80]}, not {expected.structure[:80]}")
    outputs = [
        (f"output {index}", a, b) for index, (a, b) in enumerate(zip(expected.outputs, actual.outputs, strict=False))
    ]
    if expected.loss is not None and actual.loss is not None:
        outputs.append(("the loss", expected.loss, actual.loss))
    forward = _largest(outputs, problems, None)
    pairs = []
    for name, value in expected.gradients.items():
        other = actual.gradients.get(name)
        if (value is None) != (other is None):
            problems.append(f"the gradient of {name} is {'missing' if other is None else 'extra'}")
        elif value is not None and other is not None:
            pairs.append((f"the gradient of {name}", _dense(value), _dense(other)))
    gradient = _largest(pairs, problems, GRADIENT_RTOL)
    before = len(problems)
    _largest(
        [
            (f"buffer {name}", value, actual.buffers.get(name, value.new_empty(0)))
            for name, value in expected.buffers.items()
        ],
        problems,
        None,
    )
    return Difference(problems[0] if problems else "", forward, gradient, len(problems) == before)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense() if tensor.is_sparse else tensor


def _largest(pairs: list[tuple[str, torch.Tensor, torch.Tensor]], problems: list[str], rtol: float | None) -> float:
    """The largest absolute difference; what is out of tolerance is added to `problems`."""
    largest = 0.0
    for name, expected, actual in pairs:
        try:
            own = rtol if expected.dtype in (torch.float32, torch.complex64) else None
            torch.testing.assert_close(actual, expected, equal_nan=True, rtol=own, atol=1e-6 if own else None)
        except AssertionError as error:
            problems.append(f"{name} differs: {' '.join(str(error).split())[:160]}")
        if expected.shape == actual.shape and expected.numel():
            kind = torch.complex128 if expected.is_complex() else torch.float64
            gap = (expected.to(kind) - actual.to(kind)).abs().nan_to_num()
            largest = max(largest, gap.max().item())
    return largest
