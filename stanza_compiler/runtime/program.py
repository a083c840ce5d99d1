"""A generated program as data: its stages, their order, and what of the user's file it calls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Segment:
    """One run of a stage: method `method` of the stage of `role` takes and gives the named tensors.

    A name that no earlier segment gives is an input of the model. With one name in `gives` the method returns
    that tensor, with several a tuple; the last segment gives nothing by name and returns the model's output.
    """

    role: str
    method: str
    takes: tuple[str, ...]
    gives: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """What one synthetic item looks like: its sizes without the batch axis.

    `batch_axis` is where the batch is stacked; None means one tensor for all items. `low` and `high` bound
    integers, both inclusive.
    """

    dtype: str
    shape: tuple[int, ...]
    batch_axis: int | None = 0
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Hooks:
    """The optional functions of the user's file; None where it has none."""

    loss_fn: Callable[..., Any] | None = None
    make_optimizer: Callable[..., Any] | None = None
    make_scheduler: Callable[..., Any] | None = None
    make_dataset: Callable[[], Any] | None = None
    make_eval_dataset: Callable[[], Any] | None = None
    collate_fn: Callable[..., Any] | None = None


OWNER: Literal["fc"] = "fc"  # of parameters that both stages hold


@dataclass(frozen=True, slots=True)
class SharedParameter:
    """A parameter that both stages hold: `name` in the whole model, `conv` and `fc` in the stages.

    Every copy gets the gradient of all of them, so that they stay equal. The OWNER's is the one that counts, wherever
    parameters or gradients are counted or saved; the other role's is a replica.
    """

    name: str
    conv: str
    fc: str

    def name_in(self, role: str) -> str:
        """The name in the stage of `role`."""
        return {"conv": self.conv, "fc": self.fc}[role]


@dataclass(frozen=True, slots=True)
class Program:
    """Everything that train.py says about one compiled model.

    `build_model` makes the whole model, which has `run(inputs by name)` besides forward; `bind_inputs` turns a
    call's arguments into tensors by name. `example_targets` is a tree of Example, or None without targets.
    """

    folder: Path
    stages: Mapping[str, Callable[[], nn.Module]]
    segments: tuple[Segment, ...]
    build_model: Callable[[], Any]
    bind_inputs: Callable[..., dict[str, Tensor]]
    shared: tuple[SharedParameter, ...] = ()
    hooks: Hooks = Hooks()
    example_inputs: Mapping[str, Example] = field(default_factory=dict)
    example_targets: Any = None
