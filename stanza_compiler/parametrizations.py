"""The calls that put torch's own parametrizations on a module again."""

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.utils.parametrizations import _Orthogonal, _SpectralNorm, _WeightNorm
from torch.nn.utils.parametrize import is_parametrized

from stanza_compiler.text import quoted

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def is_rebuildable(module: nn.Module) -> bool:
    """Whether every parametrization of a module is one of torch's own."""
    return all(type(step) in (_WeightNorm, _SpectralNorm, _Orthogonal) for _, step in _steps(module))


def parametrized(module: nn.Module, line: str) -> str:
    """The line that builds a module without its parametrizations, within the calls that register them."""
    for name, step in _steps(module):
        function, options = _call(module, name, step)
        told = "".join(f", {key}={_literal(value)}" for key, (value, default) in options.items() if value != default)
        line = f"nn.utils.parametrizations.{function}({line}{told})"
    return line


def _call(module: nn.Module, name: str, step: Any) -> tuple[str, dict[str, tuple[Any, Any]]]:
    """The function that registers a parametrization, its options as (value, default)."""
    match step:
        case _WeightNorm():
            return "weight_norm", {"name": (name, "weight"), "dim": (step.dim, 0)}
        case _SpectralNorm():
            return "spectral_norm", {
                "name": (name, "weight"),
                "n_power_iterations": (getattr(step, "n_power_iterations", 1), 1),  # a vector needs none
                "eps": (step.eps, 1e-12),
                "dim": (step.dim, int(isinstance(module, _TRANSPOSED))),
            }
    weight = getattr(module, name)
    is_simple = weight.size(-2) != weight.size(-1) and not weight.is_complex()
    return "orthogonal", {
        "name": (name, "weight"),
        "orthogonal_map": (step.orthogonal_map.name, "householder" if is_simple else "matrix_exp"),
        "use_trivialization": ("base" in step._buffers, True),
    }


def _literal(value: object) -> str:
    return quoted(value) if isinstance(value, str) else repr(value)


def _steps(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(name of the tensor, parametrization) in the order of registration."""
    if is_parametrized(module):
        lists: Any = module.parametrizations
        for name, steps in lists.items():
            yield from ((name, step) for step in steps)
