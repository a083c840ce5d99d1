"""A stage with its initial weights."""

import torch
from torch import nn

from .program import Program


def load_stage(program: Program, role: str, device: torch.device) -> nn.Module:
    """The stage of `role` in training mode, its parameters and buffers read from weights/.

    Raises RuntimeError when the file lacks one; of tied tensors one name is enough.
    """
    stage = program.stages[role]()
    path = program.folder / "weights" / f"{role}_stage.pt"
    saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    own = {
        **dict(stage.named_parameters(remove_duplicate=False)),
        **dict(stage.named_buffers(remove_duplicate=False)),
    }
    with torch.no_grad():
        for name, tensor in saved.items():
            own[name].copy_(tensor)
    filled = {id(own[name]) for name in saved}
    missing = [name for name, tensor in own.items() if id(tensor) not in filled]
    if missing:
        raise RuntimeError(f"{path.name} lacks {', '.join(missing)}")
    return stage.to(device).train()
