"""The stages' weights put together under the names of the uncut model.

A state is what state_dict() gives: tensors and extra states by name, and modules' versions in `_metadata`.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .transfer import waiting_for


def move_state(
    state: Mapping[str, Any] | None, source: int, rank: int, group: dist.ProcessGroup
) -> dict[str, Any] | None:
    """`state` of rank `source` on rank 0; None on the other ranks. Ranks 0 and `source` have to call it."""
    if rank not in (0, source):
        return None
    if source == 0:
        return on_cpu(state or {})
    if rank == source:
        own = on_cpu(state or {})
        ties = _ties(own)
        tensors = {name: value for name, value in own.items() if isinstance(value, Tensor) and name not in ties}
        forms = [(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]
        others = {name: value for name, value in own.items() if not isinstance(value, Tensor)}
        with waiting_for("weights to rank 0"):
            dist.send_object_list([(forms, ties, others, _versions(own))], dst=0, group=group)
            for tensor in tensors.values():
                dist.send(tensor.contiguous(), dst=0, group=group)
        return None
    received: list[Any] = [None]
    with waiting_for(f"weights from rank {source}"):
        dist.recv_object_list(received, src=source, group=group)
        forms, ties, moved, versions = received[0]
        for name, shape, dtype in forms:
            moved[name] = torch.empty(shape, dtype=dtype)
            dist.recv(moved[name], src=source, group=group)
    moved |= {name: moved[first] for name, first in ties.items()}
    return _with_versions(moved, versions)


def in_order(names: Sequence[str], *states: Mapping[str, Any]) -> dict[str, Any]:
    """The states as one on the CPU, in the order of the model's own state_dict; of two equal names the last counts."""
    merged: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    for state in states:
        merged |= state
        versions |= _versions(state)
    return on_cpu(_with_versions({name: merged[name] for name in names}, versions))


def on_cpu(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with its tensors on the CPU; what was one tensor under several names stays one."""
    moved = {name: value.detach().cpu() if isinstance(value, Tensor) else value for name, value in state.items()}
    moved |= {name: moved[first] for name, first in _ties(state).items()}
    return _with_versions(moved, _versions(state))


def _ties(state: Mapping[str, Any]) -> dict[str, str]:
    """The first name of each tensor that has come before."""
    first: dict[tuple[object, ...], str] = {}
    ties = {}
    for name, value in state.items():
        if isinstance(value, Tensor) and value.numel():
            known = first.setdefault((value.device, value.data_ptr(), value.dtype, value.shape, value.stride()), name)
            if known != name:
                ties[name] = known
    return ties


def _versions(state: Mapping[str, Any]) -> dict[str, Any]:
    """The versions of modules by path, which load_state_dict() shows to modules that can read older states."""
    return getattr(state, "_metadata", None) or {}


def _with_versions(state: Mapping[str, Any], versions: Mapping[str, Any]) -> dict[str, Any]:
    """`state` as state_dict() would give it."""
    ordered = OrderedDict(state)
    ordered._metadata = dict(versions)  # type: ignore[attr-defined]  # where torch itself keeps them
    return ordered
