"""Where in the user's code a graph node comes from."""

import re
from pathlib import Path

import torch
from torch import fx

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = Path(torch.__file__).parent


def node_source(node: fx.Node, root: Path) -> str:
    """`model.py:41`, the innermost frame of the node that is not torch's own; empty when none was recorded.

    Files in the user's folder are named relative to it, installed ones relative to site-packages.
    """
    for file, line in reversed(_FRAME.findall(node.stack_trace or "")):
        path = Path(file)
        if not path.is_relative_to(_TORCH) and path.exists():
            return f"{short_path(path, root)}:{line}"
    return ""


def short_path(path: Path, root: Path) -> str:
    """A path without anything of this machine in it."""
    for part in ("site-packages", "dist-packages"):
        if part in path.parts:
            return "/".join(path.parts[path.parts.index(part) + 1 :])
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
