"""Everything that one compile was asked to do."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from stanza_compiler.cluster import Cluster
from stanza_compiler.plan import Request


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One `--input`: sizes, dtype and, for integers, the half-open range [low, high) they are drawn from."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """The command line as data; defaults are those of the command line.

    `leaves` are the paths of modules to keep whole. `batch_axes` maps an input's name to its batch axis, None for an
    input without one. `dump` names the pass whose result is printed. `measure` times ops on this machine instead of
    pricing them by the device model. `onnx` asks for a graph.onnx.
    """

    source: str
    out: Path | None = None
    cluster: Cluster = field(default_factory=Cluster)
    request: Request = field(default_factory=Request)
    inputs: tuple[InputSpec, ...] = ()
    batch_axes: tuple[tuple[str, int | None], ...] = ()
    measure: bool = False
    trace: Literal["auto", "fx", "export"] = "auto"
    leaves: tuple[str, ...] = ()
    verify: bool = True
    dry_run: bool = False
    force: bool = False
    onnx: bool = False
    dump: str | None = None
