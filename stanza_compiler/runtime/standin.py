"""A few real items that a stage runs on without learning from them.

Before the first step each stage runs on such a stand-in to see what it gives, and which parameters get
a gradient. In a step whose part of the batch is empty a rank under DistributedDataParallel runs on the same one with
a gradient of zero, because the others wait for its share of the allreduce.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

REHEARSAL = 0  # the number of the step on stand-ins, before the first one
ITEMS = 2  # BatchNorm refuses a single one


def standin_items(own: Sequence[int], everyones: Sequence[int]) -> Sequence[int]:
    """The first items of this rank's part, or of the whole batch when the part is empty."""
    return (own or everyones)[:ITEMS]


@contextmanager
def unchanged_buffers(stage: nn.Module) -> Iterator[None]:
    """Put the stage's buffers back at the end, whatever forward wrote into them."""
    saved = [
        (module, name, buffer, buffer.detach().clone())
        for module in stage.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, values in saved:
                module._buffers[name] = buffer
                buffer.copy_(values)


@contextmanager
def standing_in(stage: nn.Module) -> Iterator[None]:
    """Run forward and a backward of zeros without a trace: buffers are put back, sparse gradients get no rows.

    Rows of zeros would be rows in use to an optimiser that updates those alone, such as SparseAdam.
    """
    with unchanged_buffers(stage):
        hooks = [
            parameter.register_hook(_without_rows)  # type: ignore[no-untyped-call]  # torch gives it no types
            for parameter in stage.parameters()
            if parameter.requires_grad
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def find_trained(stage: nn.Module, tensors: Sequence[Tensor]) -> dict[str, bool]:
    """The parameters of `stage` that a backward from `tensors` reaches, each with whether its gradient is sparse.

    Leaves no gradients behind.
    """
    roots = [tensor for tensor in tensors if tensor.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.zeros_like(root) for root in roots])
    reached = {
        name: parameter.grad.is_sparse for name, parameter in stage.named_parameters() if parameter.grad is not None
    }
    stage.zero_grad(set_to_none=True)
    return reached


def parameters_behind(tensors: Sequence[Tensor]) -> set[Tensor]:
    """The leaves that a backward from `tensors` reaches."""
    leaves = {tensor for tensor in tensors if tensor.requires_grad and tensor.is_leaf}
    waiting = [tensor.grad_fn for tensor in tensors]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.add(node.variable)
        waiting += [following for following, _ in node.next_functions]
    return leaves


def backward_zero(tensors: Sequence[Tensor]) -> None:
    """A backward that adds nothing to any gradient and lets DistributedDataParallel finish its step."""
    roots = [tensor for tensor in tensors if tensor.requires_grad]
    torch.autograd.backward(roots, [torch.zeros_like(root) for root in roots])


def _without_rows(gradient: Tensor) -> Tensor:
    if not gradient.is_sparse:
        return gradient
    indices, values = gradient._indices()[:, :0], gradient._values()[:0]
    return torch.sparse_coo_tensor(indices, values, gradient.shape, check_invariants=False)
