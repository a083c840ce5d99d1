"""A model as the loader would give it, without a file of its own."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from stanza_compiler.call import describe_call
from stanza_compiler.loader import Source
from stanza_compiler.runtime.program import Hooks


def source_of(
    model: nn.Module,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    batch_axes: Mapping[str, int | None] | None = None,
    targets: Any = None,
    loss_fn: Callable[..., Any] | None = None,
) -> Source:
    """The source of `model` called as model(*args, **kwargs); the tests' folder counts as the user's."""
    return Source(
        name="model",
        place="model.py",
        basename="model.py",
        module=model,
        call=describe_call(model, args, kwargs or {}, batch_axes=batch_axes or {}, place="model.py"),
        targets=targets,
        hooks=Hooks(loss_fn=loss_fn),
        origin=__name__,
        file=Path(__file__),
        root=Path(__file__).parent,
    )
