"""An ONNX file as a torch module and an example call of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from stanza_compiler.call import drawn
from stanza_compiler.errors import LoadError
from stanza_compiler.onnx_import.batch import Inputs, describe_inputs
from stanza_compiler.onnx_import.file import OnnxFile, read_onnx
from stanza_compiler.onnx_import.importer import IMPORTABLE, imported
from stanza_compiler.onnx_import.rebatch import ATTEMPTS, Rebatching, mixes
from stanza_compiler.options import InputSpec


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """The module, arguments of one call of it, and the batch axis of each by its name in forward()."""

    module: nn.Module
    args: tuple[torch.Tensor, ...]
    batch_axes: dict[str, int | None]


def load_onnx(
    path: Path, *, place: str, inputs: Sequence[InputSpec] = (), batch_axes: Mapping[str, int | None] | None = None
) -> OnnxModel:
    """Import a file. `inputs` and `batch_axes` replace what the file says of its inputs.

    Floating initialisers are the module's parameters under their ONNX names, unless the file marks them as buffers,
    they are batch statistics, or they are unnamed and all alike; whatever follows from whole numbers is worked out now.
    A file that was exported for one batch size serves any, if that leaves each sample's result what it was.

    Raises LoadError, with the node where one is to blame.
    """
    file = read_onnx(path, place, IMPORTABLE)
    described = describe_inputs(file, inputs, batch_axes or {}, place)
    generator = torch.Generator().manual_seed(0)
    args = tuple(drawn(spec, generator) for spec in described.specs)
    if described.stored_batch is None:
        module: nn.Module = imported(file, described.arguments, path=path, place=place)
    else:
        module = _freed(file, described, args, path, place, described.stored_batch)
    return OnnxModel(module, args, described.batch_axes)


def _freed(
    file: OnnxFile, inputs: Inputs, args: tuple[torch.Tensor, ...], path: Path, place: str, stored: int
) -> nn.Module:
    """The module of a file that was exported for one batch size. Raises LoadError where it needs just that one."""
    attempt: Rebatching | None = Rebatching(stored)
    first: LoadError | None = None
    for _ in range(ATTEMPTS):
        if attempt is None:
            break
        try:
            module = imported(file, inputs.arguments, path=path, place=place, rebatching=attempt)
        except LoadError as error:
            first, attempt = first or error, attempt.next()
            continue
        if mixes(module, args, list(inputs.batch_axes.values())):
            what = f"its batch is fixed to {stored}: in a larger one a sample gives something else"
            raise LoadError(place, what, "export it with a dynamic batch axis")
        return module
    assert first is not None
    raise first
