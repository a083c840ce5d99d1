"""Which updates are a multiple of the gradient, and nothing else."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

from stanza_compiler.runtime.optimizer import Updater, make_updater
from stanza_compiler.runtime.program import Hooks


def updater_of(stage: nn.Module, make_optimizer: Callable[..., Any] | None, make_scheduler: Any = None) -> Updater:
    updater = make_updater(Hooks(make_optimizer=make_optimizer, make_scheduler=make_scheduler), stage)
    assert updater is not None
    return updater


def two_groups(parameters: Sequence[Tensor]) -> Any:
    weight, bias = parameters
    return torch.optim.SGD([{"params": [weight]}, {"params": [bias], "lr": torch.tensor(0.25)}], lr=0.5)


def test_plain_sgd_takes_its_rate_times_the_gradient() -> None:
    stage = nn.Linear(3, 2)
    updater = updater_of(stage, two_groups, lambda optimizer: StepLR(optimizer, step_size=1, gamma=0.5))
    for rates in ((0.5, 0.25), (0.25, 0.125)):
        before = [parameter.detach().clone() for parameter in stage.parameters()]
        for parameter, rate in zip(stage.parameters(), rates, strict=True):
            assert updater.rate(parameter) == rate
            parameter.grad = torch.full_like(parameter, 2.0)
        updater.step()
        for parameter, value, rate in zip(stage.parameters(), before, rates, strict=True):
            assert torch.equal(parameter.detach(), value - 2.0 * rate)


def test_the_default_is_plain_sgd() -> None:
    stage = nn.Linear(3, 2)
    assert updater_of(stage, None).rate(stage.weight) == 0.01


def clipping(parameters: Sequence[Tensor]) -> Any:
    """What users do who want gradients clipped."""
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    step = optimizer.step
    optimizer.step = lambda closure=None: (nn.utils.clip_grad_norm_(parameters, 1.0), step(closure))[1]  # type: ignore[method-assign]
    return optimizer


def hooked(parameters: Sequence[Tensor]) -> Any:
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(parameters, 1.0) and None)
    return optimizer


def derived(parameters: Sequence[Tensor]) -> Any:
    class Own(torch.optim.SGD):
        pass

    return Own(parameters, lr=0.5)


@pytest.mark.parametrize(
    "make_optimizer",
    [
        clipping,
        hooked,
        derived,
        lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
        lambda parameters: torch.optim.SGD(parameters, lr=0.5, weight_decay=0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.5, maximize=True),
        lambda parameters: torch.optim.Adam(parameters),
        lambda parameters: torch.optim.SGD(parameters[1:], lr=0.5),
    ],
)
def test_other_updates_want_the_gradient(make_optimizer: Callable[..., Any]) -> None:
    stage = nn.Linear(3, 2)
    assert updater_of(stage, make_optimizer).rate(stage.weight) is None


def test_momentum_that_comes_later_wants_the_gradient() -> None:
    stage = nn.Linear(3, 2)
    updater = updater_of(stage, lambda parameters: torch.optim.SGD(parameters, lr=0.5))
    assert updater.rate(stage.weight) == 0.5
    updater.optimizer.param_groups[0]["momentum"] = 0.9
    assert updater.rate(stage.weight) is None
