"""One trace of a copy of the model, in one mode and setting."""

import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from stanza_compiler.comparison import seeded
from stanza_compiler.errors import TraceError
from stanza_compiler.loader import Source
from stanza_compiler.modes import Traced
from stanza_compiler.refusals import refusal
from stanza_compiler.sources import node_source
from stanza_compiler.trace_export import export
from stanza_compiler.trace_fx import symbolic_trace
from stanza_compiler.traced import TOOLS, FrontEnd, copy_sharing_parameters


@dataclass(frozen=True, slots=True)
class Setting:
    """Under what a model is traced; `attributes` are (module path, name, value) set beforehand."""

    front_end: FrontEnd
    training: bool
    seed: int = 0
    attributes: tuple[tuple[str, str, Any], ...] = ()
    leaves: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class OneMode:
    """A trace in one mode and the copy of the model that it is of.

    `drew` says whether random numbers were drawn meanwhile, `reads_mode` whether the other mode may give another graph.
    """

    root: nn.Module
    traced: Traced
    drew: bool
    reads_mode: bool


def trace_once(source: Source, setting: Setting) -> OneMode:
    """Trace a copy of the model.

    Raises TraceError with the user's line where the front-end refuses or would lose a write.
    """
    root = copy_sharing_parameters(source.module)
    modes = [module.training for module in root.modules()]
    root.train(setting.training)
    for path, name, value in setting.attributes:
        vars(root.get_submodule(path))[name] = value
    versions = {name: value._version for name, value in _held(root) if isinstance(value, torch.Tensor)}
    with seeded(setting.seed):
        before = _random_state()
        try:
            traced, reads_mode = _by_front_end(source, setting, root)
        except TraceError:
            raise
        except Exception as error:
            raise refusal(source, setting.front_end, error, root) from error
        drew = _random_state() != before
    for module, mode in zip(root.modules(), modes, strict=True):
        module.training = mode
    _forbid_lost_writes(source, setting.front_end, root, versions)
    return OneMode(root, traced, drew, reads_mode)


def _by_front_end(source: Source, setting: Setting, root: nn.Module) -> tuple[Traced, bool]:
    if setting.front_end == "fx":
        return symbolic_trace(root, source.call, leaves=setting.leaves), True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch.export warns of, the comparison with the eager model decides
        exported = export(root, source.call, leaves=setting.leaves)
    for name, constant in exported.constants.items():
        setattr(root, name, constant)
    return Traced(exported.graph, exported.result), exported.reads_mode


def _random_state() -> tuple[object, ...]:
    numpy_state = np.random.get_state(legacy=True)
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), str(numpy_state)


def _forbid_lost_writes(source: Source, front_end: FrontEnd, root: nn.Module, versions: dict[str, int]) -> None:
    """Raise TraceError where forward() assigned an attribute, or wrote a tensor, outside of the graph."""
    for name, value in _held(root):
        place = node_source(value.node, source.root) if isinstance(value, fx.Proxy) else ""
        rewritten = isinstance(value, torch.Tensor) and value._version != versions.get(name, value._version)
        if isinstance(value, fx.Proxy) or rewritten:
            what = f"forward() writes self.{name} in a way that {TOOLS[front_end]} doesn't record"
            raise TraceError(place or source.place, what, f"make it a buffer, written by self.{name}.copy_(...)")


def _held(root: nn.Module) -> Iterator[tuple[str, Any]]:
    """Buffers and plain attributes by dotted name."""
    for path, module in root.named_modules():
        for name, value in (*vars(module).items(), *module._buffers.items()):
            yield f"{path}.{name}" if path else name, value
