"""Names of an ONNX file as names of modules, parameters, buffers and arguments."""

import ast
import itertools
import keyword
from collections.abc import Container
from pathlib import Path

import onnx

from stanza_compiler.onnx_import.module import OnnxModule

_OWN = frozenset(dir(OnnxModule(Path())))


class Paths:
    """Gives every tensor and layer a dotted path of its own, its ONNX name wherever that is legal."""

    def __init__(self) -> None:
        self._tensors: set[str] = set()
        self._modules: set[str] = set()

    def tensor(self, name: str) -> str:
        """The path of a parameter or buffer called `name`; no module may stand there nor a tensor above it."""
        parts = [_attribute(part) for part in name.split(".")]
        while not self._is_free(parts):
            parts[-1] += "_"
        self._tensors.add(".".join(parts))
        self._modules |= _parents(parts)
        return ".".join(parts)

    def layer(self, name: str) -> str:
        """The path of a layer called `name`."""
        parts = [_attribute(part) for part in name.split(".")]
        while not self._is_free(parts):
            parts[-1] += "_"
        self._modules |= _parents([*parts, ""])
        return ".".join(parts)

    def holds(self, path: str) -> bool:
        """Whether something stands at `path`, or would stand in its way."""
        return not self._is_free(path.split("."))

    def _is_free(self, parts: list[str]) -> bool:
        path = ".".join(parts)
        return path not in self._tensors | self._modules and not _parents(parts) & self._tensors


def _parents(parts: list[str]) -> set[str]:
    return {".".join(parts[:count]) for count in range(1, len(parts))}


def _attribute(part: str) -> str:
    """A name that the module has no attribute of."""
    return f"{part}_" if not part or part in _OWN else part


def argument(name: str, taken: Container[str]) -> str:
    """The ONNX name of an input as an argument's name that isn't in `taken`: `input.1` is input_1."""
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
    legal = "_".join(filter(None, letters.split("_"))) or "input"
    if not legal.isidentifier() or keyword.iskeyword(legal) or legal in ("self", "torch", "nn"):
        legal = f"input_{legal}"
    numbered = (f"{legal}_{number}" for number in itertools.count(2))
    return next(free for free in itertools.chain([legal], numbered) if free not in taken)


def scope(node: onnx.NodeProto) -> str:
    """The path of the torch module that a node comes from, where torch's exporters left it; else nothing.

    The exporter of torch.export notes all modules around a node, that of TorchScript puts them into the node's name:
    `/features/features.0/Conv`.
    """
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            try:
                scopes = ast.literal_eval(entry.value)
            except (ValueError, SyntaxError):
                return ""
            return str(scopes[-2]) if isinstance(scopes, list) and len(scopes) > 1 else ""
    if not node.name.startswith("/"):
        return ""
    path = ""
    for part in node.name.split("/")[1:-1]:
        parent = path.rpartition(".")[2]
        is_item = bool(parent) and part.startswith(f"{parent}.")
        path = f"{path}{part.removeprefix(parent)}" if is_item else f"{path}.{part}".removeprefix(".")
    return path
