"""Running a model without leaving a trace in it or in the random numbers."""

import contextlib
import random
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

_CONTAINERS = (dict, OrderedDict, list, set)


@contextlib.contextmanager
def preserved(module: nn.Module) -> Iterator[None]:
    """Put buffers, modes, plain attributes, hooks and the random state back to what they were."""
    values = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    held = [(child, dict(vars(child))) for child in module.modules()]
    # Buffers, hooks and caches stand in containers, which are changed in place.
    filled = [
        (value, value.copy()) for _, attributes in held for value in attributes.values() if type(value) in _CONTAINERS
    ]
    with torch.random.fork_rng():
        try:
            yield
        finally:
            for child, attributes in held:
                vars(child).clear()
                vars(child).update(attributes)
            for container, content in filled:
                container.clear()
                container.extend(content) if isinstance(container, list) else container.update(content)
            for buffer, value in values:
                put_back(buffer, value)


def put_back(buffer: torch.Tensor, value: torch.Tensor) -> None:
    """Write `value` where it is gone: an expanded buffer can't be written, but nobody else can either."""
    if not torch.equal(buffer, value):
        with torch.no_grad():
            buffer.copy_(value)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch, random and numpy draw from `seed`; afterwards they go on where they were."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
