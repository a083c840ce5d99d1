"""The weights of a sharded stage: each host reads and keeps its own columns, rank 0 gathers them at the end."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .columns import ColumnLinear, split_columns
from .layout import split_evenly
from .peers import Peers
from .program import Program


def load_columns(program: Program, columns: Mapping[str, int], peers: Peers, device: torch.device) -> nn.Module:
    """The FC stage in training mode with a ColumnLinear for each Linear of `columns`, and this host's weights in it.

    No host ever holds a whole layer: the stage is built without data, and of the file only its rows are read. Raises
    RuntimeError when the file lacks a tensor.
    """
    with torch.device("meta"):
        stage = program.stages["fc"]()
    split_columns(stage, columns, peers, device)
    _materialise(stage, device)
    path = program.folder / "weights" / "fc_stage.pt"
    saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    tensors = {**dict(stage.named_parameters()), **dict(stage.named_buffers())}
    missing = [name for name in tensors if name not in saved]
    if missing:
        raise RuntimeError(f"{path.name} lacks {', '.join(missing)}")
    layers = _split_parameters(stage)
    with torch.no_grad():
        for name, tensor in tensors.items():
            rows = layers[name].columns if name in layers else None
            tensor.copy_(saved[name] if rows is None else saved[name][rows.start : rows.stop])
    return stage.train()


def gather_columns(
    stage: nn.Module, hosts: tuple[int, ...], rank: int, group: dist.ProcessGroup
) -> dict[str, Any] | None:
    """The whole stage's state on rank 0, layer by layer; None on the other hosts, which all have to call it.

    Rank 0 is the first host, and the only one that needs memory for all of it.
    """
    state: Any = stage.state_dict()
    for name, layer in _split_parameters(stage).items():
        own = state[name].detach().cpu().contiguous()
        if rank != 0:
            dist.send(own, dst=0, group=group)
            continue
        whole = own.new_empty((layer.width, *own.shape[1:]))
        for host, rows in zip(hosts, split_evenly(layer.width, len(hosts)), strict=True):
            part = whole[rows.start : rows.stop]
            if host == 0:
                part.copy_(own)
            else:
                dist.recv(part, src=host, group=group)
        state[name] = whole
    return state if rank == 0 else None


def _materialise(stage: nn.Module, device: torch.device) -> None:
    """Room for what is not split, such as a layer that forward() never uses; a tied tensor gets one."""
    made: dict[Tensor, Tensor] = {}
    for module in stage.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and tensor.is_meta:
                    if tensor not in made:
                        room = torch.empty_like(tensor, device=device)
                        is_parameter = isinstance(tensor, nn.Parameter)
                        made[tensor] = nn.Parameter(room, tensor.requires_grad) if is_parameter else room
                    tensors[name] = made[tensor]  # type: ignore[assignment]  # a parameter where one was


def _split_parameters(stage: nn.Module) -> dict[str, ColumnLinear]:
    """By name, the layer whose rows each split parameter holds."""
    return {
        f"{path}.{name}": layer
        for path, layer in stage.named_modules()
        if isinstance(layer, ColumnLinear)
        for name, _ in layer.named_parameters()
    }
