"""Whether the user's optimiser updates a tensor by its own gradient alone: tried on a few numbers."""

import torch
from torch import Tensor, nn

from stanza_compiler.loader import Source, first_line
from stanza_compiler.runtime.optimizer import make_updater


def of_rows(source: Source) -> str:
    """Why hosts can't each update their own rows: the optimiser of a tensor isn't that of its rows."""
    start, *gradients = _numbers()
    try:
        (whole,) = _updated(source, [start], [[gradient] for gradient in gradients])
        parts = [
            _updated(source, [start[rows]], [[gradient[rows]] for gradient in gradients])[0]
            for rows in (slice(2), slice(2, None))
        ]
    except Exception as error:
        cause = f"{type(error).__name__}: {first_line(error)}"
        return f"whether make_optimizer can train parts of a tensor is unknown ({cause})"
    return "" if _are_close(torch.cat(parts), whole) else "make_optimizer's update of a tensor is not that of its rows"


def of_parameters(source: Source) -> tuple[str, ...]:
    """A note where stages that each have an optimiser of their own train otherwise than the whole model."""
    if source.hooks.make_optimizer is None:
        return ()
    start, *gradients = _numbers()
    try:
        together = _updated(source, [start, 2 * start], [[gradient, 3 * gradient] for gradient in gradients])
        apart = [
            _updated(source, [factor * start], [[scale * gradient] for gradient in gradients])[0]
            for factor, scale in ((1, 1), (2, 3))
        ]
    except Exception as error:
        cause = f"{type(error).__name__}: {first_line(error)}"
        return (f"whether make_optimizer's update of a parameter depends on others was not tested ({cause})",)
    if all(map(_are_close, apart, together)):
        return ()
    what = "make_optimizer's update of a parameter depends on the other parameters (a norm of all gradients?)"
    return (f"{what}: each stage has an optimiser of its own, which sees that stage's alone",)


def _numbers() -> list[Tensor]:
    """A parameter and two gradients."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(6, 4, generator=generator) for _ in range(3)]


def _are_close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def _updated(source: Source, starts: list[Tensor], steps: list[list[Tensor]]) -> list[Tensor]:
    """The parameters `weights.0`, `weights.1`, ... after the optimiser's steps with these gradients."""
    stage = nn.Module()
    stage.weights = nn.ParameterList([start.clone() for start in starts])
    with torch.random.fork_rng():
        updater = make_updater(source.hooks, stage)
        assert updater is not None
        for gradients in steps:
            for parameter, gradient in zip(stage.parameters(), gradients, strict=True):
                parameter.grad = gradient.clone()
            updater.step()
    return [parameter.detach() for parameter in stage.parameters()]
