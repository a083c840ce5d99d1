"""Recurrent layers, as torch's own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from stanza_compiler.onnx_import.builder import Builder
from stanza_compiler.onnx_import.ops.shapes import view
from stanza_compiler.onnx_import.values import Known, UnsupportedError, Value, constant, shape_of

# The gates in the order of torch, as places in the order of ONNX: torch has input, forget, cell, output for LSTM where
# ONNX has input, output, forget, cell; reset, update, new for GRU where ONNX has update, reset, new.
_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _recurrent(kind: str) -> Callable[..., Any]:
    def handler(
        b: Builder,
        x: Value,
        weight: Value,
        recurrence: Value,
        bias: Value | None = None,
        lengths: Value | None = None,
        hidden: Value | None = None,
        cell: Value | None = None,
        peepholes: Value | None = None,
        *,
        hidden_size: int,
        direction: str = "forward",
        activations: list[str] | None = None,
        layout: int = 0,
        linear_before_reset: int = 0,
        input_forget: int = 0,
    ) -> Any:
        """One layer over (time, batch, features); its weights in torch's order of gates."""
        directions = 2 if direction == "bidirectional" else 1
        _forbid(lengths is not None, "takes sequences of several lengths")
        _forbid(peepholes is not None or bool(input_forget), "has peepholes or coupled gates")
        _forbid(bool(layout), "has the batch first")
        _forbid(kind == "GRU" and not linear_before_reset, "applies the reset gate before its weights")
        options, plain = {}, _ACTIVATIONS[kind] * directions
        if activations and [name.lower() for name in activations] != [name.lower() for name in plain]:
            _forbid(kind != "RNN" or {name.lower() for name in activations} != {"relu"}, f"has gates of {activations}")
            options = {"nonlinearity": "relu"}
        weights = _weights(kind, constant(weight), constant(recurrence), None if bias is None else constant(bias))
        layer: nn.Module = getattr(nn, kind)(
            constant(weight).shape[2],
            hidden_size,
            bias=bias is not None,
            bidirectional=directions == 2,
            device="meta",
            dtype=constant(weight).dtype,
            **options,
        )
        states = [_state(state) for state in (hidden, cell)[: 2 if kind == "LSTM" else 1]]
        if direction == "reverse":
            x = b(torch.flip, x, (0,))
        y, last = b.layer(None, layer, x, *_given(b, x, states, directions, hidden_size), **weights)
        if direction == "reverse":
            y = b(torch.flip, y, (0,))
        time, _, _ = shape_of(x)
        steps = time if time is not None else b.size(x, 0)
        split = view(b, y, [steps, b.size(x, 1), directions, hidden_size])
        return [b(torch.permute, split, (0, 2, 1, 3)), *(last if isinstance(last, list) else [last])]

    return handler


def _forbid(found: bool, what: str) -> None:
    if found:
        raise UnsupportedError(what)


def _weights(kind: str, weight: torch.Tensor, recurrence: torch.Tensor, bias: torch.Tensor | None) -> dict[str, Known]:
    """torch's parameters by name."""
    found: dict[str, torch.Tensor] = {}
    for place, ending in enumerate(("", "_reverse")[: len(weight)]):
        found[f"weight_ih_l0{ending}"] = _reordered(weight[place], kind)
        found[f"weight_hh_l0{ending}"] = _reordered(recurrence[place], kind)
        if bias is not None:
            inputs, states = bias[place].chunk(2)
            found[f"bias_ih_l0{ending}"] = _reordered(inputs, kind)
            found[f"bias_hh_l0{ending}"] = _reordered(states, kind)
    return {role: Known(tensor, "") for role, tensor in found.items()}


def _reordered(gates: torch.Tensor, kind: str) -> torch.Tensor:
    order = _GATES[kind]
    parts = gates.chunk(len(order))
    return torch.cat([parts[place] for place in order])


def _state(state: Value | None) -> Value | None:
    """The initial state, None where it is zero."""
    return None if isinstance(state, Known) and not state.tensor.any() else state


def _given(b: Builder, x: Value, states: list[Value | None], directions: int, size: int) -> list[Any]:
    """The layer's argument for its initial states; a stored one is the same for every sample of the batch."""
    if all(state is None for state in states):
        return []
    full = [
        b(torch.zeros, directions, b.size(x, 1), size, dtype=torch.float32)
        if state is None
        else b("expand", state, (-1, b.size(x, 1), -1))
        if isinstance(state, Known)
        else state
        for state in states
    ]
    return [tuple(full)] if len(full) > 1 else full


OPS: dict[str, Callable[..., Any]] = {kind: _recurrent(kind) for kind in _GATES}
