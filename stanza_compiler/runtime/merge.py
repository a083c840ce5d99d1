"""The stages' weights put together under the names of the uncut model."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def move_state(
    state: Mapping[str, Tensor] | None, source: int, rank: int, group: dist.ProcessGroup
) -> dict[str, Tensor] | None:
    """`state` of rank `source` on rank 0; None on the other ranks. Ranks 0 and `source` have to call it."""
    if rank not in (0, source):
        return None
    if source == 0:
        return on_cpu(state or {})
    if rank == source:
        tensors = on_cpu(state or {})
        forms = [(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]
        dist.send_object_list([forms], dst=0, group=group)
        for tensor in tensors.values():
            dist.send(tensor.contiguous(), dst=0, group=group)
        return None
    received: list[Any] = [None]
    dist.recv_object_list(received, src=source, group=group)
    tensors = {}
    for name, shape, dtype in received[0]:
        tensors[name] = torch.empty(shape, dtype=dtype)
        dist.recv(tensors[name], src=source, group=group)
    return tensors


def in_order(state: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    """The state on the CPU in the order of the model's own state_dict."""
    return on_cpu({name: state[name] for name in names})


def on_cpu(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu() for name, tensor in state.items()}
