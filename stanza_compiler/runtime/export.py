"""The trained weights as a file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def export(state: Mapping[str, Any], path: Path) -> None:
    """Write a state_dict beside `path`, then rename it: the file is always whole."""
    temporary = path.with_name(f"{path.name}.tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)
