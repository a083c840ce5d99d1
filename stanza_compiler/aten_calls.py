"""What a stretch of code does in aten calls: FLOPs, writes, random numbers."""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from stanza_compiler.flop_formulas import formula_of

# aten ops that multiply and add, should they have no formula.
_COMPUTE = re.compile(
    r"lstm|gru|rnn(?!_flatten_weight)|attention|attn|_fft_[rc]2[rc]|linalg_(?!vector_norm|_powsum|cross|check_errors)"
    r"|[cp]dist|cholesky|geqrf|ormqr|triangular_solve|matmul|conv(?!ert)"
    r"|(^|_)s{0,2}(add|badd|v)?b?(mm|mv|dot|linear)(_|$)"
)
_ELEMENTWISE = re.compile(
    "_thnn_fused|backward"
)  # gates of a recurrent cell; what a gradient costs shows by its own ops
# Whose ops are told by their names; an op of another library is a black box.
_KNOWN_LIBRARIES = ("aten", "prim", "prims", "profiler", "torchvision")


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Attention by its matrix products, which every device has, for what gradients need alone.

    Fused inference layers would also make nested tensors of padded ones, which hold no sizes.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class AtenCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves __init_subclass__ untyped
    """Notes FLOPs, written tensors, the drawing of random numbers and compute without a formula since the last reset.

    `lookups` are tables whose gradient will be sparse, each with how many rows of it were looked up.

    It is FlopCounterMode without the module hierarchy, which costs more than everything else here.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.reset()

    def reset(self) -> None:
        self.flops = 0
        self.mutated: list[torch.Tensor] = []
        self.uncounted: list[str] = []
        self.lookups: list[tuple[torch.Tensor, int]] = []
        self.is_random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        facts = _facts(func)
        if facts.is_composite:
            with self:
                value = func.decompose(*args, **kwargs)
            if value is not NotImplemented:
                return value
        for index, name in facts.written:
            self.mutated += tensors_in(args[index] if index < len(args) else kwargs.get(name))
        if facts.uncounted:
            self.uncounted.append(facts.uncounted)
        self.is_random |= facts.is_random
        if facts.sparse_flag is not None and True in args[facts.sparse_flag : facts.sparse_flag + 1]:
            self.lookups.append((args[0], args[1].numel()))
        value = func(*args, **kwargs)
        if facts.flops is not None:
            self.flops += facts.flops(*args, **kwargs, out_val=value)
        return value


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of an op beforehand.

    `written` are the arguments it writes to, by index and name; `flops` is its formula; `uncounted` its name when it
    computes and has none. `is_composite` tells that it consists of other ops, as it shows in inference mode alone.
    `sparse_flag` is the argument of a lookup (weight, indices, ...) that asks for a sparse gradient.
    """

    written: tuple[tuple[int, str], ...] = ()
    is_random: bool = False
    flops: Callable[..., int] | None = None
    uncounted: str = ""
    is_composite: bool = False
    sparse_flag: int | None = None


@cache
def _facts(func: Any) -> _Facts:
    flops = formula_of(func)
    if isinstance(func, torch._ops.HigherOrderOperator):
        return _Facts(flops=flops, uncounted="" if flops else str(func))
    library, name = func.namespace, func.overloadpacket.__name__
    return _Facts(
        written=tuple(
            (index, argument.name)
            for index, argument in enumerate(func._schema.arguments)
            if (argument.alias_info is not None and argument.alias_info.is_write)
            or ("batch_norm" in name and argument.name.startswith("running_"))  # their schema doesn't say so
        ),
        is_random=torch.Tag.nondeterministic_seeded in func.tags,
        flops=flops,
        uncounted="" if flops else _computes(library, name),
        sparse_flag=_sparse_flag(func),
        is_composite=flops is None
        and library == "aten"
        and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"),
    )


def _sparse_flag(func: Any) -> int | None:
    """Where a lookup of `indices` in a table `weight` says that the table's gradient is to be sparse."""
    names = [argument.name for argument in func._schema.arguments]
    return names.index("sparse") if names[:2] == ["weight", "indices"] and "sparse" in names else None


def _computes(library: str, name: str) -> str:
    """The op's name when it multiplies and adds, or may, as far as the name tells; else nothing."""
    if library not in _KNOWN_LIBRARIES:
        return f"{library}::{name}"
    return name if _COMPUTE.search(name) and not _ELEMENTWISE.search(name) else ""


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of nested containers, in order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
