"""Which inputs hold the contents of embedding bags that another input delimits."""

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from stanza_compiler.call import Call
from stanza_compiler.undisturbed import preserved, seeded


def bag_contents(module: nn.Module, call: Call) -> tuple[str, ...]:
    """The inputs that an embedding bag takes as its ids or as their weights, where its offsets are an input too.

    They have no batch axis, even if the example has as many ids as bags: two batches put one behind the other are no
    batch, because offsets count from the beginning of their own.
    """
    whole = [
        leaf for leaf in call.leaves if leaf.example.dim() == 1 and leaf.example.dtype in (torch.int32, torch.int64)
    ]
    if len(whole) < 2 or any(parameter.is_meta for parameter in module.parameters()):
        return ()  # ids and offsets are two, and without values nothing runs
    args, kwargs = call.arguments()
    bags = _Bags()
    try:
        with preserved(module), seeded(0), torch.no_grad(), bags:
            module(*args, **kwargs)
    except Exception:  # whatever the model raises on its own example, later passes say so
        return ()
    tensors = call.tensors(args, kwargs)
    inputs = set(map(_memory, tensors))
    contents = {memory for offsets, memories in bags.seen if offsets in inputs for memory in memories}
    return tuple(
        leaf.name
        for leaf, tensor in zip(call.leaves, tensors, strict=True)
        if tensor.dim() == 1 and tensor.numel() and _memory(tensor) in contents
    )


class _Bags(TorchFunctionMode):
    """Notes of each bag where its offsets lie, and where what they delimit; views lie where their base does."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, set[int]]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.embedding_bag:
            bag = inspect.signature(func).bind(*args, **(kwargs or {})).arguments
            if bag.get("offsets") is not None:
                contents = (bag["input"], bag.get("per_sample_weights"))
                self.seen.append((_memory(bag["offsets"]), {_memory(each) for each in contents if each is not None}))
        return func(*args, **(kwargs or {}))


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
