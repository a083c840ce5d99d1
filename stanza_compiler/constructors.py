"""The line that builds a torch.nn module again."""

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.loss import _Loss
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from stanza_compiler.errors import EmitError
from stanza_compiler.parametrizations import is_rebuildable, parametrized
from stanza_compiler.text import quoted

_RNN = (nn.RNN, nn.LSTM, nn.GRU)
_HIDDEN = ("training", "device", "dtype", "in_proj_container")

_TRANSFORMER_LAYER: dict[str, Callable[[Any], Any]] = {
    "d_model": lambda m: m.self_attn.embed_dim,
    "nhead": lambda m: m.self_attn.num_heads,
    "dim_feedforward": lambda m: m.linear1.out_features,
    "dropout": lambda m: m.dropout.p,
    "activation": lambda m: m.activation,
    "layer_norm_eps": lambda m: m.norm1.eps,
    "batch_first": lambda m: m.self_attn.batch_first,
    "bias": lambda m: m.linear1.bias is not None,
}

# Arguments that no attribute of the same name holds, by class (subclasses included); the first match counts.
_EXCEPTIONS: tuple[tuple[type[nn.Module], dict[str, Callable[[Any], Any]]], ...] = (
    (
        nn.MultiheadAttention,
        {
            "bias": lambda m: m.in_proj_bias is not None,
            "add_bias_kv": lambda m: m.bias_k is not None,
            "kdim": lambda m: None if m._qkv_same_embed_dim else m.kdim,
            "vdim": lambda m: None if m._qkv_same_embed_dim else m.vdim,
        },
    ),
    (nn.TransformerEncoderLayer, _TRANSFORMER_LAYER),
    (nn.TransformerDecoderLayer, _TRANSFORMER_LAYER),
    (nn.TransformerEncoder, {"encoder_layer": lambda m: m.layers[0]}),
    (nn.TransformerDecoder, {"decoder_layer": lambda m: m.layers[0]}),
    (nn.Embedding, {"_weight": lambda m: None, "_freeze": lambda m: False}),
    (nn.EmbeddingBag, {"_weight": lambda m: None}),
    (nn.PReLU, {"init": lambda m: 0.25}),
    (nn.PairwiseDistance, {"p": lambda m: m.norm}),
    (nn.LayerNorm, {"bias": lambda m: m.bias is not None or not m.elementwise_affine}),
    (nn.GroupNorm, {"bias": lambda m: m.bias is not None or not m.affine}),
    (_NormBase, {"bias": lambda m: m.bias is not None or not m.affine}),
    (_Loss, {"size_average": lambda m: None, "reduce": lambda m: None}),
    (nn.Hardtanh, {"min_value": lambda m: None, "max_value": lambda m: None}),
)


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is torch's own and holds its children itself, so that one line builds it.

    It is not when a hook, a forward() set on the instance or a parametrization of the user's belongs to its call.
    """
    containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
    kind = type_before_parametrizations(module)
    return (
        getattr(nn, kind.__name__, None) is kind
        and kind not in (nn.Module, *containers)
        and not (module._forward_pre_hooks or module._forward_hooks or "forward" in vars(module))
        and is_rebuildable(module)
    )


def constructor(module: nn.Module, path: str) -> str:
    """A line such as `nn.Conv2d(3, 64, kernel_size=11, stride=4)`, proved by evaluating it.

    The module that the line builds has the same type, hyper-parameters, children, parameter and buffer shapes. Raises
    EmitError when no such line is found.
    """
    for short in (True, False):
        try:
            line = parametrized(module, _line(module, short))
            rebuilt = (
                _with_values(line) if is_parametrized(module) else _without_values(line, torch.get_default_dtype())
            )
        except (TypeError, ValueError, RuntimeError, AttributeError, NameError, SyntaxError):
            continue
        if _equal(module, rebuilt):
            return line
    kind = type_before_parametrizations(module).__name__
    raise EmitError(path, f"no line of code builds this {kind} again", f"build {kind} by its constructor alone")


def _with_values(line: str) -> Any:
    with torch.random.fork_rng(devices=[]):
        return eval(line, {"nn": nn, "torch": torch, "math": math, "F": nn.functional})


@lru_cache(maxsize=64)
def _without_values(line: str, dtype: torch.dtype) -> Any:
    """What a line builds under a default dtype on the meta device; for looking at alone."""
    with torch.device("meta"):
        return _with_values(line)


def _line(module: nn.Module, short: bool) -> str:
    positional: list[str] = []
    keywords: list[str] = []
    for parameter, value in _arguments(module):
        if parameter.kind == parameter.VAR_POSITIONAL:
            positional += [_literal(item, short) for item in value]
        elif parameter.default is inspect.Parameter.empty and parameter.name != "kernel_size":
            positional.append(_literal(value, short))
        elif parameter.default is inspect.Parameter.empty or not _same(value, parameter.default, short):
            keywords.append(f"{parameter.name}={_literal(value, short and 'Conv' in type(module).__name__)}")
    for name in _frozen_dtype(module):
        keywords.append(f"dtype={name}")
    return f"{_type_name(module)}({', '.join([*positional, *keywords])})"


def _type_name(module: nn.Module) -> str:
    kind = type_before_parametrizations(module)
    if getattr(nn, kind.__name__, None) is kind:
        return f"nn.{kind.__name__}"
    raise AttributeError(kind.__name__)


def _arguments(module: nn.Module) -> Iterator[tuple[inspect.Parameter, Any]]:
    base = nn.RNNBase if isinstance(module, _RNN) else type(module)
    for name, parameter in _parameters(base.__init__).items():
        if name in ("self", "device", "dtype") or (name == "mode" and base is nn.RNNBase):
            continue
        if parameter.kind == parameter.VAR_KEYWORD:
            continue
        if parameter.kind == parameter.VAR_POSITIONAL and not hasattr(module, name):  # nn.Module's own *args
            continue
        yield parameter, _value(module, name)
    if isinstance(module, nn.RNN) and module.nonlinearity != "tanh":
        yield inspect.Parameter("nonlinearity", inspect.Parameter.KEYWORD_ONLY, default="tanh"), module.nonlinearity


@lru_cache(maxsize=64)
def _parameters(function: Callable[..., None]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def _value(module: nn.Module, name: str) -> Any:
    for kind, getters in _EXCEPTIONS:
        if isinstance(module, kind) and name in getters:
            return getters[name](module)
    if is_parametrized(module, name):
        return True
    if name in module._parameters:  # bias=..., elementwise_affine has an attribute of its own
        return module._parameters[name] is not None
    return getattr(module, name)  # a buffer's values come with the weights, here only its shape counts


def _frozen_dtype(module: nn.Module) -> Iterator[str]:
    dtypes = {parameter.dtype for parameter in module.parameters()}
    if len(dtypes) == 1 and dtypes != {torch.get_default_dtype()}:
        yield repr(dtypes.pop())


def _literal(value: Any, short: bool) -> str:
    """A Python literal; with `short`, (3, 3) is written 3."""
    if isinstance(value, tuple | torch.Size):
        if short and value and all(type(item) is int and item == value[0] for item in value):
            return repr(value[0])
        items = [_literal(item, False) for item in value]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(_literal(item, False) for item in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, str):
        return quoted(value)
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, torch.dtype):
        return repr(value)
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        return f"torch.empty({_literal(tuple(value.shape), False)}, dtype={value.dtype})"
    if isinstance(value, nn.Module):
        return constructor(value, type(value).__name__)
    name = getattr(value, "__name__", "")
    if name and getattr(nn.functional, name, None) is value:
        return f"F.{name}"
    raise ValueError(f"{type(value).__name__} has no literal")


def _same(value: Any, default: Any, short: bool) -> bool:
    """Whether an argument may be left out; with `short`, (0, 0) is 0."""
    if short and isinstance(value, tuple) and isinstance(default, int) and not isinstance(default, bool):
        return all(item == default for item in value)
    return type(value) is type(default) and not isinstance(value, torch.Tensor) and bool(value == default)


def _equal(module: nn.Module, rebuilt: nn.Module) -> bool:
    return (
        type_before_parametrizations(module) is type_before_parametrizations(rebuilt)
        and module.extra_repr() == rebuilt.extra_repr()
        and _hyper_parameters(module, rebuilt) == _hyper_parameters(rebuilt, rebuilt)
        and _tensors(module) == _tensors(rebuilt)
        and module._non_persistent_buffers_set == rebuilt._non_persistent_buffers_set
        and list(module._modules) == list(rebuilt._modules)
        and all(
            child is None if other is None else child is not None and _equal(child, other)
            for child, other in zip(module._modules.values(), rebuilt._modules.values(), strict=True)
        )
    )


def _hyper_parameters(module: nn.Module, rebuilt: nn.Module) -> dict[str, Any]:
    """Plain attributes by name; not those that users note on a layer of torch's, which itself doesn't know them."""
    simple = (bool, int, float, str, tuple, list, type(None))
    return {
        name: copy.copy(value)
        for name, value in vars(module).items()
        if isinstance(value, simple) and not name.startswith("_") and name not in _HIDDEN and hasattr(rebuilt, name)
    }


def _tensors(module: nn.Module) -> list[tuple[str, Any, Any]]:
    held = [*module._parameters.items(), *module._buffers.items()]
    held += [(name, value) for name, value in vars(module).items() if isinstance(value, torch.Tensor)]
    return [
        (name, None if tensor is None else tuple(tensor.shape), None if tensor is None else tensor.dtype)
        for name, tensor in held
    ]
