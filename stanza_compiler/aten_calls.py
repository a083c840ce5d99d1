"""What a stretch of code does in aten calls: FLOPs, writes, random numbers."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

# aten ops that multiply and add but that torch.utils.flop_counter has no formula for.
_COMPUTE = re.compile(
    r"^(?!_thnn_fused).*(lstm|gru|rnn|attention|_fft|linalg_(?!vector_norm|check_errors)|cdist|cholesky|svd|trilinear|conv(olution)?)"
    r"|(^|_)(add|badd|v)?b?(mm|mv|dot)(_|$)"
)


class AtenCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves __init_subclass__ untyped
    """Notes FLOPs, written tensors, the drawing of random numbers and compute without a formula since the last reset.

    It is FlopCounterMode without the module hierarchy, which costs more than everything else here.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.reset()

    def reset(self) -> None:
        self.flops = 0
        self.mutated: list[torch.Tensor] = []
        self.uncounted: list[str] = []
        self.is_random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        facts = _facts(func)
        for index, name in facts.written:
            self.mutated += tensors_in(args[index] if index < len(args) else kwargs.get(name))
        if facts.uncounted:
            self.uncounted.append(facts.uncounted)
        self.is_random |= facts.is_random
        value = func(*args, **kwargs)
        if facts.flops is not None:
            self.flops += facts.flops(*args, **kwargs, out_val=value)
        return value


@dataclass(frozen=True, slots=True)
class _Facts:
    """What an aten op's schema says: the arguments it writes to, by index and name, and how its FLOPs are counted."""

    written: tuple[tuple[int, str], ...]
    is_random: bool
    flops: Callable[..., int] | None
    uncounted: str


@cache
def _facts(func: Any) -> _Facts:
    name = func.overloadpacket.__name__
    flops = flop_registry.get(func.overloadpacket)
    computes = flops is None and _COMPUTE.search(name) and "backward" not in name
    return _Facts(
        written=tuple(
            (index, argument.name)
            for index, argument in enumerate(func._schema.arguments)
            if (argument.alias_info is not None and argument.alias_info.is_write)
            or ("batch_norm" in name and argument.name.startswith("running_"))  # their schema doesn't say so
        ),
        is_random=torch.Tag.nondeterministic_seeded in func.tags,
        flops=flops,
        uncounted=name if computes else "",
    )


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of nested containers, in order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
