"""Where in the user's code a graph node comes from."""

import os
import sys
from pathlib import Path

import torch
from torch import fx

from stanza_compiler.text import printable

_LINE = "user_line"
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"  # not torchvision


def record_line(node: fx.Node) -> None:
    """Note on a node, called by the tracer that makes it, the innermost line that runs now and is not torch's.

    Nothing when the tracer itself comes first: it made the node of its own accord. torch.fx's own stack traces cost
    ten times as much, and import sympy.
    """
    tracer = sys._getframe(1)
    frame = tracer.f_back
    while frame is not None and (file := frame.f_code.co_filename) != tracer.f_code.co_filename:
        if not file.startswith((_TORCH, "<")):
            node.meta[_LINE] = (file, frame.f_lineno)
            return
        frame = frame.f_back


def record_frames(node: fx.Node, frames: list[tuple[str, int]]) -> None:
    """Note the innermost of (file, line) `frames`, outermost first, that is not torch's."""
    own = [(file, line) for file, line in frames if os.path.isabs(file) and not file.startswith(_TORCH)]
    if own:
        node.meta[_LINE] = own[-1]


def node_source(node: fx.Node, root: Path) -> str:
    """`model.py:41`, the line that made the node; empty when none was recorded.

    Files in the user's folder are named relative to it, installed ones relative to site-packages.
    """
    if _LINE not in node.meta:
        return ""
    file, line = node.meta[_LINE]
    return f"{short_path(Path(file), root)}:{line}"


def short_path(path: Path, root: Path) -> str:
    """A path without anything of this machine in it, fit for one line of text."""
    for part in ("site-packages", "dist-packages"):
        if part in path.parts:
            return printable("/".join(path.parts[path.parts.index(part) + 1 :]))
    return printable(path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name)
