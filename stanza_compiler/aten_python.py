"""The torch call that a person would write for an aten operator."""

import operator
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

INT64_MAX = 2**63 - 1
_ALL = slice(None)
_REDUCTIONS = ("none", "mean", "sum")

_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "pow": operator.pow,
    "matmul": operator.matmul, "floor_divide": operator.floordiv, "remainder": operator.mod,
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
    "__and__": operator.and_, "__or__": operator.or_, "__xor__": operator.xor,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "neg": operator.neg, "bitwise_not": operator.invert,
}  # fmt: skip
_METHODS = frozenset(
    {
        "clone", "contiguous", "copy_", "detach", "expand_as", "fill_", "flatten", "item", "masked_fill", "mean",
        "new_empty", "new_full", "new_ones", "new_zeros", "split", "squeeze", "sum", "transpose", "type_as",
        "unflatten", "unfold", "unsqueeze", "view_as", "zero_", "mT", "flip",
    }
)  # fmt: skip
_SPREAD = frozenset({"view", "reshape", "expand", "permute", "repeat"})  # their sizes are written as arguments
_SAME_IN_F = frozenset(
    {
        "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "avg_pool2d", "avg_pool3d", "gelu", "glu",
        "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "linear", "mish", "one_hot", "pad", "relu", "relu6",
        "silu", "softplus", "dropout", "conv1d", "conv2d", "conv3d", "bilinear",
        "group_norm", "selu", "celu", "max_pool1d", "max_pool2d", "max_pool3d",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spelling:
    """A call as a graph node has it; `op` is empty where the call gives back `args[0]` itself."""

    op: str
    target: Any = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def spell(graph: fx.Graph) -> None:
    """Replace aten operators by the torch functions, methods and Python operators that call them.

    Devices that tracing baked in become the device of an input. What has no shorter form stays. Modifies `graph`.
    """
    device = _Device(graph)
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target.namespace != "aten":
            continue
        spelling = _spelling(node, device)
        if spelling is None:
            continue
        if not spelling.op:
            node.replace_all_uses_with(_first(spelling))
            graph.erase_node(node)
            continue
        if spelling.target is operator.setitem:
            node.replace_all_uses_with(_first(spelling))
        node.op, node.target = spelling.op, spelling.target  # in place, so that it keeps its name
        node.args, node.kwargs = spelling.args, spelling.kwargs


def _first(spelling: Spelling) -> fx.Node:
    base = spelling.args[0]
    assert isinstance(base, fx.Node)
    return base


class _Device:
    """The expression for the device of a graph's first input, made when it is first wanted."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.node: fx.Node | None = None

    def __call__(self) -> fx.Node:
        if self.node is None:
            inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
            with self.graph.inserting_after(inputs[-1]):
                self.node = self.graph.call_function(getattr, (inputs[0], "device"))
        return self.node


def _spelling(node: fx.Node, device: _Device) -> Spelling | None:
    target: Any = node.target
    name = target.overloadpacket.__name__
    bound = _Bound(node)
    special = _SPECIAL.get(name)
    if special is not None:
        return special(bound)
    kwargs = bound.keywords(device)
    if name in _OPERATORS and not kwargs:
        return Spelling("call_function", _OPERATORS[name], bound.all)
    if name in _SPREAD:
        sizes = bound.all[1]
        return Spelling("call_method", name, (bound.all[0], *sizes), kwargs)
    if name in _METHODS or (name.endswith("_") and not name.startswith("_") and hasattr(torch.Tensor, name)):
        return Spelling("call_method", name, bound.shortened, kwargs)
    if name in _SAME_IN_F:
        args = bound.all if name == "dropout" else bound.shortened
        return Spelling("call_function", getattr(F, name), args, kwargs)
    function = getattr(torch, name, None)
    if isinstance(function, types.BuiltinFunctionType) and not name.startswith("_"):
        return Spelling("call_function", function, bound.shortened, kwargs)
    return None


class _Bound:
    """A node's arguments in the order of its operator's schema."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node
        target: Any = node.target
        self.arguments = target._schema.arguments
        positional = [argument for argument in self.arguments if not argument.kwarg_only]
        self.values: dict[str, Any] = {}
        for index, argument in enumerate(positional):
            given = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
            missing = index >= len(node.args) and argument.name not in node.kwargs
            self.values[argument.name] = argument.default_value if missing and argument.has_default_value() else given
        self.all = tuple(self.values.values())

    def __getitem__(self, name: str) -> Any:
        return self.values[name] if name in self.values else self.node.kwargs.get(name)

    @property
    def shortened(self) -> tuple[Any, ...]:
        """The positional arguments without defaults at the end."""
        arguments = [argument for argument in self.arguments if not argument.kwarg_only]
        values = list(self.all)
        while values and arguments[len(values) - 1].has_default_value():
            default = arguments[len(values) - 1].default_value
            if isinstance(values[-1], fx.Node) or values[-1] != default or type(values[-1]) is not type(default):
                break
            values.pop()
        return tuple(values)

    def keywords(self, device: _Device) -> dict[str, Any]:
        """The keyword-only arguments that differ from their defaults, without what belongs to the tracing machine."""
        kept: dict[str, Any] = {}
        for argument in self.arguments:
            if not argument.kwarg_only or argument.name not in self.node.kwargs:
                continue
            value: Any = self.node.kwargs[argument.name]
            if argument.name in ("pin_memory", "layout", "non_blocking"):
                continue
            if argument.name == "device":
                makes_from_nothing = not any(isinstance(other, fx.Node) and _is_tensor(other) for other in self.all)
                if value is not None and makes_from_nothing:
                    kept["device"] = device()
            elif isinstance(value, fx.Node) or not argument.has_default_value() or value != argument.default_value:
                kept[argument.name] = value
        return kept


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _rank(node: Any) -> int:
    return int(node.meta["val"].dim())


def _select(bound: _Bound) -> Spelling:
    base, axis = bound["self"], bound["dim"]
    if axis < 0:
        axis += _rank(base)
    index = (*[_ALL] * axis, bound["index"])
    return Spelling("call_function", operator.getitem, (base, index if axis else bound["index"]))


def _slice(bound: _Bound) -> Spelling:
    base, axis, start, end, step = (bound[name] for name in ("self", "dim", "start", "end", "step"))
    start = None if isinstance(start, int) and start == 0 else start
    end = None if isinstance(end, int) and end == INT64_MAX else end
    step = None if isinstance(step, int) and step == 1 else step
    if start is None and end is None and step is None:
        return Spelling("", args=(base,))
    if axis < 0:
        axis += _rank(base)
    part = slice(start, end, step)
    return Spelling("call_function", operator.getitem, (base, (*[_ALL] * axis, part) if axis else part))


def _index(indices: Sequence[Any]) -> Any:
    whole = tuple(_ALL if index is None else index for index in indices)
    return whole[0] if len(whole) == 1 else whole


def _gather(bound: _Bound) -> Spelling:
    return Spelling("call_function", operator.getitem, (bound["self"], _index(bound["indices"])))


def _index_put_(bound: _Bound) -> Spelling | None:
    if bound["accumulate"]:
        return None
    return Spelling("call_function", operator.setitem, (bound["self"], _index(bound["indices"]), bound["values"]))


def _to(bound: _Bound) -> Spelling | None:
    """Conversions of dtype; a device is the stage's own and is left out."""
    base, dtype = bound["self"], bound["dtype"]
    if bound["other"] is not None:
        return Spelling("call_method", "to", (base, bound["other"]))
    copies = {"copy": True} if bound["copy"] else {}
    if dtype is None:
        return Spelling("call_method", "clone", (base,)) if copies else Spelling("", args=(base,))
    return Spelling("call_method", "to", (base, dtype), copies)


def _to_copy(bound: _Bound) -> Spelling:
    if bound["dtype"] is None:
        return Spelling("call_method", "clone", (bound["self"],))
    return Spelling("call_method", "to", (bound["self"], bound["dtype"]), {"copy": True})


def _lift(bound: _Bound) -> Spelling:
    """A literal tensor is made anew by every call; where nobody writes to it, it need not be."""
    written = any(
        isinstance(user.target, torch._ops.OpOverload)
        and (user.target._schema.is_mutable and user.target.overloadpacket.__name__ != "detach_")
        for user in _viewers(bound.node)
    )
    return Spelling("call_method", "clone", (bound["self"],)) if written else Spelling("", args=(bound["self"],))


def _viewers(node: fx.Node) -> list[fx.Node]:
    found = []
    for user in node.users:
        found.append(user)
        schema = getattr(user.target, "_schema", None)
        if schema is not None and any(argument.alias_info is not None for argument in schema.arguments):
            found += _viewers(user)
    return found


def _itself(bound: _Bound) -> Spelling:
    return Spelling("", args=(bound["self"],))


def _embedding(bound: _Bound) -> Spelling:
    padding = bound["padding_idx"] if bound["padding_idx"] != -1 else None
    options = {"padding_idx": padding, "scale_grad_by_freq": bound["scale_grad_by_freq"], "sparse": bound["sparse"]}
    kept = {name: value for name, value in options.items() if value is not None and value is not False}
    return Spelling("call_function", F.embedding, (bound["indices"], bound["weight"]), kept)


def _layer_norm(bound: _Bound) -> Spelling:
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    return Spelling("call_function", F.layer_norm, tuple(bound[name] for name in names))


def _batch_norm(bound: _Bound) -> Spelling:
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    return Spelling("call_function", F.batch_norm, tuple(bound[name] for name in names))


def _dropout_(bound: _Bound) -> Spelling:
    return Spelling("call_function", F.dropout, bound.all, {"inplace": True})


def _attention(bound: _Bound) -> Spelling:
    """With its dropout always: train and eval mode differ by it alone, and so stay one call."""
    options = {
        "attn_mask": bound["attn_mask"],
        "dropout_p": bound["dropout_p"],
        "is_causal": bound["is_causal"] or None,
        "scale": bound["scale"],
        "enable_gqa": bound["enable_gqa"] or None,
    }
    kept = {name: value for name, value in options.items() if value is not None}
    tensors = tuple(bound[name] for name in ("query", "key", "value"))
    return Spelling("call_function", F.scaled_dot_product_attention, tensors, kept)


def _constant_pad(bound: _Bound) -> Spelling:
    value = bound["value"]
    return Spelling("call_function", F.pad, (bound["self"], bound["pad"]), {"value": value} if value else {})


def _einsum(bound: _Bound) -> Spelling:
    return Spelling("call_function", torch.einsum, (bound["equation"], *bound["tensors"]))


def _size(bound: _Bound) -> Spelling | None:
    return None if bound["dim"] is None else Spelling("call_method", "size", (bound["self"], bound["dim"]))


def _numel(bound: _Bound) -> Spelling:
    return Spelling("call_method", "numel", (bound["self"],))


def _item(bound: _Bound) -> Spelling:
    return Spelling("call_method", "item", (bound["self"],))


def _rsub(bound: _Bound) -> Spelling | None:
    if bound["alpha"] not in (None, 1):
        return None
    return Spelling("call_function", operator.sub, (bound["other"], bound["self"]))


def _cross_entropy(bound: _Bound) -> Spelling:
    options = {
        "weight": (bound["weight"], None),
        "ignore_index": (bound["ignore_index"], -100),
        "reduction": (_REDUCTIONS[bound["reduction"]], "mean"),
        "label_smoothing": (bound["label_smoothing"], 0.0),
    }
    kept = {name: value for name, (value, default) in options.items() if isinstance(value, fx.Node) or value != default}
    return Spelling("call_function", F.cross_entropy, (bound["self"], bound["target"]), kept)


def _nll(bound: _Bound) -> Spelling:
    options = {
        "weight": (bound["weight"], None),
        "ignore_index": (bound["ignore_index"], -100),
        "reduction": (_REDUCTIONS[bound["reduction"]], "mean"),
    }
    kept = {name: value for name, (value, default) in options.items() if isinstance(value, fx.Node) or value != default}
    return Spelling("call_function", F.nll_loss, (bound["self"], bound["target"]), kept)


def _pair_loss(function: Callable[..., Any]) -> Callable[[_Bound], Spelling]:
    def spelled(bound: _Bound) -> Spelling:
        reduction = _REDUCTIONS[bound["reduction"]]
        kept = {} if reduction == "mean" else {"reduction": reduction}
        return Spelling("call_function", function, (bound["self"], bound["target"]), kept)

    return spelled


def _interpolate(mode: str) -> Callable[[_Bound], Spelling | None]:
    def spelled(bound: _Bound) -> Spelling | None:
        if "scale_factors" not in bound.values:
            return None
        size, scale, corners = bound["output_size"], bound["scale_factors"], bound["align_corners"]
        options = {"size": size, "scale_factor": scale, "mode": mode, "align_corners": corners}
        kept = {name: value for name, value in options.items() if value is not None and value is not False}
        return Spelling("call_function", F.interpolate, (bound["input"],), kept)

    return spelled


_SPECIAL: dict[str, Callable[[_Bound], Spelling | None]] = {
    "select": _select, "slice": _slice, "index": _gather, "index_put_": _index_put_,
    "to": _to, "_to_copy": _to_copy, "lift_fresh_copy": _lift, "detach_": _itself, "alias": _itself,
    "embedding": _embedding, "layer_norm": _layer_norm, "batch_norm": _batch_norm, "dropout_": _dropout_,
    "scaled_dot_product_attention": _attention,
    "constant_pad_nd": _constant_pad, "einsum": _einsum, "rsub": _rsub, "sym_size": _size, "sym_numel": _numel,
    "_local_scalar_dense": _item, "cross_entropy_loss": _cross_entropy, "nll_loss_nd": _nll,
    "mse_loss": _pair_loss(F.mse_loss), "l1_loss": _pair_loss(F.l1_loss),
    "upsample_nearest1d": _interpolate("nearest"), "upsample_nearest2d": _interpolate("nearest"),
    "upsample_linear1d": _interpolate("linear"), "upsample_bilinear2d": _interpolate("bilinear"),
    "upsample_bicubic2d": _interpolate("bicubic"), "upsample_trilinear3d": _interpolate("trilinear"),
}  # fmt: skip
