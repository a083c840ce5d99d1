"""The trained weights as a file."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor


def export(state: Mapping[str, Tensor], path: Path) -> None:
    """Write a state_dict beside `path`, then rename it: the file is always whole."""
    temporary = path.with_name(f"{path.name}.tmp")
    torch.save(dict(state), temporary)
    os.replace(temporary, path)
