"""What a front-end lost of the user's code, found on the lines that call torch when the model runs by itself."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from stanza_compiler.comparison import SEED, preserved, seeded
from stanza_compiler.loader import Source
from stanza_compiler.sources import short_path

_TORCH = Path(torch.__file__).parent


@dataclass(frozen=True, slots=True)
class Loss:
    """A line that the graph has lost or invented, why, and the path of the module that runs it (unknown: empty)."""

    line: str
    cause: str
    module: str = ""


@dataclass(frozen=True, slots=True)
class _Line:
    place: str
    has_gradients: bool
    has_autocast: bool
    module: str


def first_loss(source: Source, tool: str, traced: set[str]) -> Loss | None:
    """The first line of the eager training forward that a graph with nodes from the lines `traced` can't stand for."""
    recorder = _Recorder(source.root, source.module)
    with preserved(source.module), seeded(SEED), torch.enable_grad():
        args, kwargs = source.call.arguments()
        source.module.train()
        with recorder:
            source.module(*args, **kwargs)
    places = {line.place for line in recorder.lines}
    for line in recorder.lines:
        if not line.has_gradients:
            what = f"{tool} drops the torch.no_grad region or autograd.Function around this line"
            return Loss(line.place, what, line.module)
        if line.has_autocast:
            return Loss(line.place, f"{tool} drops the autocast region around this line", line.module)
    for line in recorder.lines:
        if line.place not in traced:
            return Loss(line.place, f"this line runs, but not while {tool} traces (a branch on a type?)", line.module)
    for place in sorted(traced - places):
        return Loss(place, f"this line runs only while {tool} traces (a branch on a type?)")
    return None


class _Recorder(TorchFunctionMode):
    """Notes the user's line of every call on tensors."""

    def __init__(self, root: Path, model: nn.Module) -> None:
        super().__init__()
        self.root = root
        self.paths = {id(module): path for path, module in model.named_modules()}
        self.lines: list[_Line] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        place, module = self._user_line()
        if place and any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves((args, kwargs))):
            autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
            self.lines.append(_Line(place, torch.is_grad_enabled(), autocast, module))
        return func(*args, **(kwargs or {}))

    def _user_line(self) -> tuple[str, str]:
        """The user's innermost line, and the path of the module whose forward() reaches it."""
        place = ""
        frame = sys._getframe(2)
        while frame.f_back is not None:
            path = Path(frame.f_code.co_filename)
            if path == Path(__file__):
                break
            if not place and not path.is_relative_to(_TORCH) and path.exists():
                place = f"{short_path(path, self.root)}:{frame.f_lineno}"
            if place and id(frame.f_locals.get("self")) in self.paths:
                return place, self.paths[id(frame.f_locals["self"])]
            frame = frame.f_back
        return place, ""
