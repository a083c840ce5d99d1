"""The profiled model as plain numbers: what each op costs, reads and yields."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import networkx as nx

Kind = Literal["batched", "replicated", "per-rank"]

SHORT_DTYPES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "b8",
    "complex64": "c64",
}


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor that a graph input or an op yields.

    `shape` holds the sizes at the profiled batch. A value occupies
    `constant_bytes + bytes_per_sample * batch` bytes. Its kind says what several ranks' copies are to each
    other: *batched* ones are concatenated along `batch_axis` in rank order, *replicated* ones are equal
    (they depend on parameters and constants alone), *per-rank* ones depend on data without a batch axis.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: Kind
    batch_axis: int | None
    bytes_per_sample: int
    constant_bytes: int
    requires_grad: bool

    def bytes_at(self, batch: float) -> float:
        return self.constant_bytes + self.bytes_per_sample * batch

    def __str__(self) -> str:
        sizes = ["B" if axis == self.batch_axis else str(size) for axis, size in enumerate(self.shape)]
        return f"{self.name} {SHORT_DTYPES.get(self.dtype, self.dtype)}[{', '.join(sizes)}]"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the model under its original name; `aliases` are further names of the same tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    elements: int
    bytes: int
    trainable: bool
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Op:
    """One call of the traced model.

    FLOPs are 2 per multiply-add and per sample; `constant_flops` do not grow with the batch (forward).
    `memory_bytes_per_sample` and `constant_memory_bytes` are what the forward reads and writes: inputs, output
    and weights, nothing for a view. `forward_s` and `backward_s` are measured seconds at the graph's
    batch size, None where the device model prices the op.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    output: Value | None
    source: str = ""
    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    forward_flops: int = 0
    backward_flops: int = 0
    constant_flops: int = 0
    memory_bytes_per_sample: int = 0
    constant_memory_bytes: int = 0
    forward_s: float | None = None
    backward_s: float | None = None
    uncounted: tuple[str, ...] = ()
    is_random: bool = False
    sparse_lookups: float = 0.0
    """Rows of its parameter that a sample looks up, where the gradient is sparse; 0 where it is dense."""
    is_size: bool = False
    """Arithmetic on sizes: free, recomputed in every segment that needs it, never sent."""

    @property
    def has_work(self) -> bool:
        return bool(self.forward_flops or self.constant_flops or self.parameters or self.uncounted)

    def __str__(self) -> str:
        yields = str(self.output).removeprefix(f"{self.name} ") if self.output else "-"
        return f"{self.name:32} {self.kind:20} {yields:28} {self.forward_flops:>16,} FLOPs  {', '.join(self.inputs)}"


@dataclass(frozen=True)
class OpGraph:
    """The whole model: ops in program order, each reading only inputs and earlier ops.

    `outputs` are the names of the values that the model returns or its loss reads; `target_bytes` is what
    one sample's target occupies. `batch_size` is the batch that was profiled.
    """

    name: str
    batch_size: int
    inputs: tuple[Value, ...]
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    buffer_bytes: int = 0
    target_bytes: int = 0

    @cached_property
    def op(self) -> dict[str, Op]:
        return {op.name: op for op in self.ops}

    @cached_property
    def parameter(self) -> dict[str, Parameter]:
        return {parameter.name: parameter for parameter in self.parameters}

    @cached_property
    def value(self) -> dict[str, Value]:
        """Every tensor by name: inputs first, then ops in program order."""
        yielded = (op.output for op in self.ops)
        return {value.name: value for value in (*self.inputs, *yielded) if value is not None}

    @cached_property
    def network(self) -> "nx.DiGraph[str]":
        """Ops and inputs as a networkx view, an edge from a value's maker to each reader."""
        network: nx.DiGraph[str] = nx.DiGraph()
        network.add_nodes_from(value.name for value in self.inputs)
        network.add_nodes_from(op.name for op in self.ops)
        network.add_edges_from((name, op.name) for op in self.ops for name in op.inputs)
        return network

    @property
    def parameter_bytes(self) -> int:
        return sum(parameter.bytes for parameter in self.parameters)

    @property
    def forward_flops(self) -> int:
        return sum(op.forward_flops for op in self.ops)

    @property
    def constant_flops(self) -> int:
        return sum(op.constant_flops for op in self.ops)

    def __str__(self) -> str:
        heads = [f"input {value}" for value in self.inputs]
        return "\n".join([*heads, *map(str, self.ops), f"return {', '.join(self.outputs)}"])


@dataclass(frozen=True, slots=True)
class Shardable:
    """Which ops several hosts can share by columns.

    `linears` are layers of which a host may have some columns, `pointwise` ops go on with these, `stateless` ones
    every host may do alike. `why_not` says what forbids it all, `takes_all` what makes the loss take all scores.
    """

    linears: frozenset[str] = frozenset()
    pointwise: frozenset[str] = frozenset()
    stateless: frozenset[str] = frozenset()
    why_not: str = ""
    takes_all: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """What every cut must respect.

    `together`: ops that share one segment. `order`: (earlier, later) pairs, the later one never in an earlier
    segment. `conv_only` and `fc_only`: ops that one role must hold. `single_host`: why one FC host
    must see the whole batch, empty when it need not. `uncut`: why a rank's part of a step can't be taken in pieces, one
    after the other; empty when it can.
    """

    together: tuple[tuple[str, ...], ...] = ()
    order: tuple[tuple[str, str], ...] = ()
    conv_only: tuple[str, ...] = ()
    fc_only: tuple[str, ...] = ()
    single_host: str = ""
    notes: tuple[str, ...] = ()
    shardable: Shardable = Shardable()
    uncut: str = ""

    def __str__(self) -> str:
        lines = [f"together   {', '.join(group)}" for group in self.together]
        lines += [f"order      {earlier} before {later}" for earlier, later in self.order]
        lines += [f"conv only  {name}" for name in self.conv_only]
        lines += [f"fc only    {name}" for name in self.fc_only]
        lines += [f"one host   {self.single_host}"] if self.single_host else []
        lines += [f"uncut      {self.uncut}"] if self.uncut else []
        lines += [f"shardable  {name}" for name in sorted(self.shardable.linears)]
        return "\n".join([*lines, *(f"note       {note}" for note in self.notes)])
