"""How a stage's parameters are updated."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

from .program import Hooks

# Options of SGD that make an update more than a multiple of the gradient.
_ANYTHING_ELSE = ("momentum", "weight_decay", "maximize", "differentiable")


@dataclass(frozen=True, slots=True)
class Updater:
    """A stage's optimiser and its schedule, which advances once per optimiser step."""

    optimizer: Any
    scheduler: Any
    is_sgd: bool

    def rate(self, parameter: Tensor) -> float | None:
        """How many times its gradient the next `step` takes from a parameter, if it does nothing else with that.

        So does torch's SGD without momentum, weight decay and hooks, which may look at gradients or change them.
        """
        if not self.is_sgd or any(
            (
                self.optimizer._optimizer_step_pre_hooks,
                self.optimizer._optimizer_step_post_hooks,
                _global_optimizer_pre_hooks,
            )
        ):
            return None
        for group in self.optimizer.param_groups:
            if any(parameter is each for each in group["params"]):
                return None if any(group[option] for option in _ANYTHING_ELSE) else float(group["lr"])
        return None

    def step(self) -> None:
        """Update the parameters from their gradients, then forget the gradients."""
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)


def make_updater(hooks: Hooks, stage: nn.Module, names: Mapping[str, str] | None = None) -> Updater | None:
    """The user's optimiser (default: SGD, lr 0.01) over the trainable parameters of `stage`, in original order.

    None when the stage has none. A make_optimizer whose parameter is called `named_parameters` gets pairs
    (original name, parameter); `names` gives original names that are not the stage's own.
    """
    trainable = [
        ((names or {}).get(name, name), parameter)
        for name, parameter in stage.named_parameters()
        if parameter.requires_grad
    ]
    if not trainable:
        return None
    parameters = [parameter for _, parameter in trainable]
    if hooks.make_optimizer is None:
        optimizer: Any = torch.optim.SGD(parameters, lr=0.01)
    elif next(iter(inspect.signature(hooks.make_optimizer).parameters), "") == "named_parameters":
        optimizer = hooks.make_optimizer(trainable)
    else:
        optimizer = hooks.make_optimizer(parameters)
    # Not with a `step` that somebody put in the place of SGD's; schedulers do that too, to count.
    is_sgd = type(optimizer) is torch.optim.SGD and "step" not in vars(optimizer)
    return Updater(optimizer, hooks.make_scheduler(optimizer) if hooks.make_scheduler else None, is_sgd)
