"""Turns the nodes of a graph into calls of torch, each recorded and tried at two batch sizes."""

import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from stanza_compiler.onnx_import.module import OnnxModule, Step
from stanza_compiler.onnx_import.names import Paths
from stanza_compiler.onnx_import.rebatch import Rebatching
from stanza_compiler.onnx_import.values import (
    Attr,
    Known,
    Layer,
    Number,
    Ref,
    Sizes,
    Target,
    Traced,
    Value,
    bound,
    is_fixed,
    mapped,
    plain_number,
    rank_of,
    shape_of,
)


class Builder:
    """Records steps for an OnnxModule and fills it with the parameters, buffers and layers they need.

    `node`, `name`, `scope` and `outputs` describe the ONNX node in work: its number from 1, its first output's name,
    the torch module it comes from, and which of its outputs anyone reads. `rebatching` frees shapes of the batch size
    that was written into the file; None where none was.
    """

    def __init__(
        self,
        module: OnnxModule,
        *,
        opset: int,
        initializers: Mapping[str, Known],
        uses: Counter[str],
        rebatching: Rebatching | None,
    ) -> None:
        self.module, self.opset, self.rebatching = module, opset, rebatching
        self.node, self.name, self.scope = 0, "", ""
        self.outputs: Sequence[bool] = ()
        self._initializers, self._uses = initializers, uses
        self._paths = Paths()
        self._steps: list[Step] = []
        self._inputs: list[Traced] = []
        self._attrs: dict[int, Traced] = {}
        self._kept: list[Known] = []
        self._sizes: dict[tuple[Ref | Attr, int], Number] = {}

    # Calls

    def add_input(self, dtype: torch.dtype, shapes: tuple[Sequence[int], Sequence[int]]) -> Traced:
        """The next input of the module, with its shape at either batch size."""
        samples = tuple(torch.empty(tuple(shape), dtype=dtype, device="meta") for shape in shapes)
        self._inputs.append(Traced(Ref(len(self._inputs)), (samples[0], samples[1])))
        return self._inputs[-1]

    def __call__(self, target: Target, *args: Any, **kwargs: Any) -> Any:
        """Call `target` on values and plain arguments; the result is a Value, a number or a list of Values.

        Where nothing depends on the run it is called at once, else it becomes a step.
        """
        leaves: list[Any] = []
        mapped(leaves.append, (args, kwargs))
        if is_fixed(*leaves) and not isinstance(target, Layer):
            with torch.no_grad():
                function, rest = bound(target, mapped(_tensor, args), self.module)
                return self._known(function(*rest, **mapped(_tensor, kwargs)))
        args, kwargs = mapped(self._settled, (args, kwargs))
        samples = (self._sample(target, args, kwargs, 0), self._sample(target, args, kwargs, 1))
        self._steps.append(Step(target, mapped(_reference, args), mapped(_reference, kwargs), self.node))
        return self._result(Ref(len(self._inputs) + len(self._steps) - 1), samples)

    def _sample(self, target: Target, args: Any, kwargs: Any, index: int) -> Any:
        def sample(leaf: Any) -> Any:
            return leaf.samples[index] if isinstance(leaf, Traced) else leaf

        with torch.no_grad(), torch.device("meta"):
            function, rest = bound(target, mapped(sample, args), self.module)
            return function(*rest, **mapped(sample, kwargs))

    def _result(self, ref: Ref, samples: tuple[Any, Any]) -> Any:
        one, other = samples
        if isinstance(one, tuple | list) and not isinstance(one, torch.Size):
            return [self(operator.getitem, Traced(ref, samples), index) for index in range(len(one))]
        if isinstance(one, torch.Tensor) or one != other:
            return Traced(ref, samples)
        return one

    def _settled(self, leaf: Any) -> Any:
        return self._attribute(leaf) if isinstance(leaf, Known) else leaf

    def _known(self, result: Any) -> Any:
        if isinstance(result, tuple | list) and not isinstance(result, torch.Size):
            return [self._known(item) for item in result]
        return Known(result, self.name) if isinstance(result, torch.Tensor) else result

    # Parameters, buffers and layers

    def _attribute(self, known: Known) -> Traced:
        """A known tensor as a parameter or buffer of the module."""
        if id(known) not in self._attrs:
            path = self._paths.tensor(known.name or "constant")
            owner = self._owner(path)
            name = path.rpartition(".")[2]
            if known.trains:
                owner.register_parameter(name, nn.Parameter(known.tensor))
            else:
                owner.register_buffer(name, known.tensor, persistent=known.name in self._initializers)
            sample = known.tensor.to("meta")
            self._attrs[id(known)] = Traced(Attr(path), (sample, sample))
            self._kept.append(known)  # its id stays its own
        return self._attrs[id(known)]

    def _owner(self, path: str) -> nn.Module:
        module: nn.Module = self.module
        for part in path.split(".")[:-1]:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        return module

    def home(self, **tensors: Value | None) -> str | None:
        """The path of the torch layer whose parameters these are by their names: `conv1` for weight=conv1.weight.

        None when they are no initialisers, when their names differ, or when another node reads one of them.
        """
        given = {role: tensor for role, tensor in tensors.items() if tensor is not None}
        paths = {
            tensor.name.removesuffix(f".{role}")
            for role, tensor in given.items()
            if isinstance(tensor, Known) and tensor.name in self._initializers and tensor.name.endswith(f".{role}")
        }
        names = {tensor.name for tensor in given.values() if isinstance(tensor, Known)}
        if len(paths) != 1 or len(names) != len(given) or any(self._uses[name] > 1 for name in names):
            return None
        path = paths.pop()
        beside = {name for name in self._initializers if name.startswith(f"{path}.")}
        is_alone = beside <= names | {f"{path}.num_batches_tracked"} and names == {f"{path}.{role}" for role in given}
        return path if is_alone and path and not self._paths.holds(path) else None

    def layer(self, path: str | None, layer: nn.Module, *args: Any, **tensors: Value | None) -> Any:
        """Call a torch layer at `path`, made on the meta device, that gets these parameters and buffers.

        Without a path it goes where the node itself belongs.
        """
        placed = self._paths.layer(path or self._place())
        self._owner(placed).add_module(placed.rpartition(".")[2], layer.eval())
        result = self(Layer(placed), *args)
        layer.train()
        for role, value in tensors.items():
            if isinstance(value, Known):
                tensor = value.tensor.clone() if self._uses[value.name] > 1 else value.tensor
                setattr(layer, role, nn.Parameter(tensor) if role in layer._parameters else tensor)
        return result

    def _place(self) -> str:
        if self.scope and not self._paths.holds(self.scope):
            return self.scope
        return self.name.strip("/").replace("/", "_").replace(".", "_") or "layer"

    # What handlers ask

    def dims(self, value: Value) -> list[Number]:
        """Sizes by axis; those that follow from the batch size are asked for when the model runs."""
        return [self.size(value, axis) for axis in range(rank_of(value))]

    def size(self, value: Value, axis: int) -> Number:
        size = shape_of(value)[axis]
        if size is not None:
            return size
        assert isinstance(value, Traced)
        key = (value.ref, axis)
        if key not in self._sizes:
            self._sizes[key] = self("size", value, axis)
        return self._sizes[key]

    def batch(self) -> Number:
        """The size of the batch in work."""
        value, axis = next((value, shape_of(value).index(None)) for value in self._inputs if None in shape_of(value))
        return self.size(value, axis)

    def product(self, numbers: Iterable[Number]) -> Number:
        total: Number = 1
        for item in numbers:
            total = self(operator.mul, total, item)
        return total

    def operand(self, value: Value, other: Value) -> Any:
        """One side of an elementwise operation: a constant or size that is alone as a plain number."""
        is_alone = math.prod(shape for shape in shape_of(value) if shape is not None) == 1
        is_plain = is_alone and rank_of(value) <= rank_of(other) and not is_fixed(other)
        if isinstance(value, np.ndarray):
            return value.item() if is_plain else self.stacked(value)
        if isinstance(value, Known) and not value.trains and is_plain and not value.tensor.is_complex():
            return plain_number(value.tensor)
        return value

    def stacked(self, array: Sizes) -> Traced:
        """Sizes as a tensor."""
        parts = [self(torch.full, (1,), item, dtype=torch.int64) for item in array.flat]
        joined: Traced = self(torch.cat, parts)
        if array.ndim != 1:
            joined = self(torch.reshape, joined, array.shape)
        return joined

    def is_read(self, output: int) -> bool:
        """Whether anyone reads an output of the node in work."""
        return output < len(self.outputs) and self.outputs[output]

    # The end

    def finish(self, outputs: Iterable[Value]) -> None:
        """Give the module its steps, without those that no output needs."""
        refs = [self._output(value).ref for value in outputs]
        needed: set[int] = {ref.index for ref in refs if isinstance(ref, Ref)}
        kept: list[int] = []
        inputs = len(self._inputs)
        for index in range(len(self._steps) - 1, -1, -1):
            if index + inputs in needed:
                kept.append(index)
                step = self._steps[index]
                mapped(lambda leaf: needed.add(leaf.index) if isinstance(leaf, Ref) else None, (step.args, step.kwargs))
        kept.reverse()
        moved = {index: index for index in range(inputs)}
        moved |= {index + inputs: place + inputs for place, index in enumerate(kept)}

        def move(leaf: Any) -> Any:
            return Ref(moved[leaf.index]) if isinstance(leaf, Ref) else leaf

        steps = [self._steps[index] for index in kept]
        self.module.set_program(
            [Step(step.target, mapped(move, step.args), mapped(move, step.kwargs), step.node) for step in steps],
            [move(ref) for ref in refs],
        )

    def _output(self, value: Value) -> Traced:
        if isinstance(value, np.ndarray):
            return self.stacked(value)
        return self._attribute(value) if isinstance(value, Known) else value


def _tensor(leaf: Any) -> Any:
    return leaf.tensor if isinstance(leaf, Known) else leaf


def _reference(leaf: Any) -> Any:
    return leaf.ref if isinstance(leaf, Traced) else leaf
