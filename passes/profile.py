"""From a traced model to plain numbers per op, without running the model."""

import contextlib
import logging
import operator
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from stanza_compiler.aten_calls import AtenCalls, plain_attention, tensors_in
from stanza_compiler.call_key import CallKey, CallKeys, storage_id
from stanza_compiler.errors import ProfileError
from stanza_compiler.fakes import Fakes, is_plain
from stanza_compiler.loader import Source, first_line
from stanza_compiler.opaque import OpaqueCall, opaque_calls
from stanza_compiler.opgraph import Op, OpGraph, Parameter, Value
from stanza_compiler.sources import node_source
from stanza_compiler.traced import Interpreter, Trace, attribute, cut_off

_DEPENDS_ON_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


@dataclass(slots=True)
class _Run:
    """What one node did at one batch size; nothing when it runs in eval mode alone."""

    leaves: list[torch.Tensor] = field(default_factory=list)
    value: Any = None
    forward_flops: int = 0
    backward_flops: int = 0
    memory_bytes: int = 0
    mutated: tuple[int, ...] = ()
    uncounted: tuple[str, ...] = ()
    sparse_lookups: int = 0
    is_random: bool = False
    is_left_out: bool = False


@dataclass(frozen=True, slots=True)
class Profile:
    """The OpGraph, and what legality needs beyond it: who shares memory with whom and who writes to it.

    `storages` gives the storage that each value lies in; `mutations` the storages that an op writes to;
    `state_storages` names the parameter or buffer that lies in a storage.
    """

    graph: OpGraph
    storages: dict[str, int]
    mutations: dict[str, tuple[int, ...]]
    state_storages: dict[int, str]

    def __str__(self) -> str:
        return str(self.graph)


def profile(source: Source, traced: Trace) -> Profile:
    """Shapes, bytes, FLOPs and batch axes of every op, from two batch sizes of tensors without data.

    FLOPs are those of torch.utils.flop_counter's formulas, 2 per multiply-add; per sample they are the slope over the
    two batches. Ops that compute but that have no formula are listed in Op.uncounted. Raises ProfileError with the op
    and its line when one can't be profiled.
    """
    batch = max(source.call.batch_size, 2)
    fakes = Fakes(FakeTensorMode(allow_non_fake_inputs=True))
    root = fakes.copy(traced.root)
    root.training = True  # what only eval mode runs costs a training step nothing
    for module in root.modules():
        if isinstance(module, _BatchNorm) and module.momentum is None:
            module.momentum = 0.1  # a cumulative average reads its counter's value, which a fake tensor has not
    memo = _Memo(fakes, root)
    with _silent(logging.getLogger("torch._subclasses.fake_tensor")):  # it prints the traceback of what we tell
        small = _Interpreter(source, traced, root, memo, batch)
        large = _Interpreter(source, traced, root, memo, 2 * batch)
    return _assembled(source, traced, small, large)


@contextlib.contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


class _Interpreter(Interpreter):
    """Runs the graph on fake tensors at one batch size, node by node, forward and backward."""

    def __init__(self, source: Source, traced: Trace, root: nn.Module, memo: "_Memo", batch: int) -> None:
        super().__init__(traced, root, keeps_values=True)
        self.source, self.memo, self.batch = source, memo, batch
        self.runs: dict[fx.Node, _Run] = {}
        self.opaque = opaque_calls(source, traced, batch)
        self.dispatch = AtenCalls()
        self.state_storages = memo.state_storages
        with torch.random.fork_rng(), memo.fakes.mode, plain_attention(), self.dispatch, torch.enable_grad():
            examples = [_fake_input(leaf.example, leaf.batch_axis, batch) for leaf in source.call.leaves]
            self.run(*examples)

    def leave_out(self, node: fx.Node) -> None:
        self.runs[node] = _Run(is_left_out=True)

    def run_call(self, node: fx.Node) -> Any:
        if node.op in ("placeholder", "get_attr", "output"):
            value = super().run_call(node)
            self.runs[node] = _Run(leaves=tensors_in(value), value=value)
            return value
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        if node in self.opaque:
            run = self.runs[node] = self._observed(node, self.opaque[node], tensors_in((args, kwargs)))
            return run.value
        target = self.fetch_attr(str(node.target)) if node.op == "call_module" else node.target
        call = self.memo.keys.of(target, args, kwargs)
        if call is not None and (known := self.memo.run(call)) is not None:
            self.runs[node] = known
            return known.value
        try:
            run = self.runs[node] = self._forward(node, args, kwargs)
            run.backward_flops = self._backward_flops(node, args, kwargs, run)
        except Exception as error:
            place = node_source(node, self.source.root) or self.source.place
            cause = f"{type(error).__name__}: {first_line(error)}"
            what = f"{self.traced.names[node]} can't be profiled at batch {self.batch}: {cause}"
            remedy = "make the line work at any batch size, or say by --batch-axis where the batch is"
            if isinstance(error, _DEPENDS_ON_VALUES):
                what = f"how large {self.traced.names[node]} is depends on the values of its inputs"
                remedy = "keep the submodule that it is in whole by --leaf SUBMODULE"
            raise ProfileError(place, what, remedy) from error
        if call is not None:
            self.memo.keep(call, run)
        return run.value

    def _observed(self, node: fx.Node, call: OpaqueCall, inputs: list[torch.Tensor]) -> _Run:
        """What a module that is kept whole did on data."""
        value = pytree.tree_map_only(
            torch.Tensor,
            lambda tensor: torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            ).requires_grad_(tensor.requires_grad),
            call.value,
        )
        leaves = tensors_in(value)
        return _Run(
            leaves=leaves,
            value=value,
            forward_flops=call.forward_flops,
            backward_flops=call.backward_flops,
            memory_bytes=self._memory_bytes(node, inputs, leaves, ()),
            uncounted=call.uncounted,
            is_random=call.is_random,
        )

    def _forward(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Run:
        inputs = tensors_in((args, kwargs))
        self.dispatch.reset()
        value = getattr(self, node.op)(node.target, args, kwargs)
        leaves = tensors_in(value)
        # An address names a storage only while it lives: what the op wrote for itself alone doesn't count.
        known = set(map(storage_id, inputs))
        written = dict.fromkeys(map(storage_id, self.dispatch.mutated))
        mutated = tuple(key for key in written if key in known or key in self.state_storages)
        return _Run(
            leaves=leaves,
            value=value,
            forward_flops=self.dispatch.flops,
            memory_bytes=self._memory_bytes(node, inputs, leaves, mutated) - self._unread_bytes(),
            mutated=mutated,
            uncounted=tuple(dict.fromkeys(self.dispatch.uncounted)),
            sparse_lookups=sum(count for _, count in self.dispatch.lookups),
            is_random=self.dispatch.is_random,
        )

    def _memory_bytes(
        self, node: fx.Node, inputs: list[torch.Tensor], outputs: list[torch.Tensor], mutated: tuple[int, ...]
    ) -> int:
        """Bytes read and written; nothing for a view."""
        if not mutated and {storage_id(tensor) for tensor in outputs} <= {storage_id(tensor) for tensor in inputs}:
            return 0
        weights = self.fetch_attr(str(node.target)).parameters() if node.op == "call_module" else ()
        return sum(map(_bytes, [*inputs, *outputs, *weights]))

    def _unread_bytes(self) -> int:
        """Bytes of tables that no lookup reads, nor its backward writes, the gradient being sparse."""
        return sum(max(0, len(table) - count) * _bytes(table) // len(table) for table, count in self.dispatch.lookups)

    def _backward_flops(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], run: _Run) -> int:
        """FLOPs of this call's own backward: called once more, on inputs cut off from what came before.

        A call that multiplies nothing forward multiplies nothing backward.
        """
        if not (run.forward_flops or run.uncounted) or not any(tensor.requires_grad for tensor in run.leaves):
            return 0
        args, kwargs = cut_off((args, kwargs))
        outputs = tensors_in(getattr(self, node.op)(node.target, args, kwargs))
        heads = [tensor for tensor in outputs if tensor.grad_fn is not None]
        weights = self.fetch_attr(str(node.target)).parameters() if node.op == "call_module" else ()
        wanted = [tensor for tensor in (*tensors_in((args, kwargs)), *weights) if tensor.requires_grad]
        self.dispatch.reset()
        torch.autograd.grad(heads, wanted, [torch.ones_like(head) for head in heads], allow_unused=True)
        return self.dispatch.flops


class _Memo:
    """What calls did that later ones may equal, and the storages of the model's own tensors."""

    def __init__(self, fakes: Fakes, root: nn.Module) -> None:
        state = {**dict(root.named_parameters()), **dict(root.named_buffers())}
        self.fakes, self.keys = fakes, CallKeys()
        self.state_storages = {storage_id(tensor): name for name, tensor in state.items()}
        self._known: dict[Hashable, tuple[_Run, tuple[int, ...]]] = {}

    def keep(self, call: CallKey, run: _Run) -> None:
        """Remember a run that yields nothing but plain tensors of its own, whatever it writes."""
        own = [storage_id(tensor) for tensor in run.leaves]
        reached = [storage_id(tensor) for tensor in call.operands]
        fresh = len(set(own)) == len(own) and self.state_storages.keys().isdisjoint(own)
        plain = all(map(is_plain, run.leaves))
        if own and fresh and plain and set(own).isdisjoint(reached) and set(run.mutated) <= set(reached):
            self._known[call.key] = run, tuple(map(reached.index, run.mutated))

    def run(self, call: CallKey) -> _Run | None:
        """What an equal call did, done to this one's operands."""
        known = self._known.get(call.key)
        if known is None:
            return None
        run, indices = known
        if isinstance(run.value, torch.Tensor):  # nearly always, and faster
            value = self.fakes.computed(run.value)
            leaves = [value]
        else:
            value = pytree.tree_map_only(torch.Tensor, self.fakes.computed, run.value)
            leaves = tensors_in(value)
        mutated = tuple(dict.fromkeys(storage_id(call.operands[index]) for index in indices))
        return replace(run, leaves=leaves, value=value, mutated=mutated)


def _fake_input(example: torch.Tensor, batch_axis: int | None, batch: int) -> torch.Tensor:
    sizes = [batch if axis == batch_axis else size for axis, size in enumerate(example.shape)]
    return torch.empty(sizes, dtype=example.dtype, device=example.device, requires_grad=example.requires_grad)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _assembled(source: Source, traced: Trace, small: _Interpreter, large: _Interpreter) -> Profile:
    batch = source.call.batch_size
    parameters, canonical = _parameters(traced.root)
    names = traced.names
    depends_on_data: set[fx.Node] = set()
    ops, inputs = [], []
    for node, run in small.runs.items():
        data_inputs = [argument for argument in node.all_input_nodes if argument in depends_on_data]
        sees_data = node.op == "placeholder" or run.is_random or any(small.runs[other].leaves for other in data_inputs)
        if sees_data:
            depends_on_data.add(node)
        if node not in names:
            continue
        output = _value(names[node], run, large.runs[node], small.batch, batch, sees_data)
        if node.op == "placeholder":
            assert output is not None
            inputs.append(output)
            continue
        read_parameters, read_buffers = _state_read(node, traced, canonical)
        per_sample, constant = _slope(run.forward_flops, large.runs[node].forward_flops, small.batch)
        memory, constant_memory = _slope(run.memory_bytes, large.runs[node].memory_bytes, small.batch)
        is_size = not (run.leaves or run.mutated or run.is_left_out)
        reads = tuple(dict.fromkeys(names[other] for other in node.all_input_nodes if other in names))
        op = Op(
            name=names[node],
            kind=_kind(node, traced.root),
            inputs=() if is_size and _is_anyones(node, run.value, large.runs[node].value, small.batch) else reads,
            output=output,
            source=node_source(node, source.root),
            parameters=read_parameters,
            buffers=read_buffers,
            forward_flops=per_sample,
            backward_flops=_slope(run.backward_flops, large.runs[node].backward_flops, small.batch)[0],
            constant_flops=constant,
            memory_bytes_per_sample=memory,
            constant_memory_bytes=constant_memory,
            uncounted=run.uncounted,
            is_random=run.is_random,
            sparse_lookups=_per_sample(run.sparse_lookups, large.runs[node].sparse_lookups, small.batch, batch),
            is_size=is_size,
        )
        ops.append(op)
    output_node = next(iter(reversed(traced.graph.nodes)))
    graph = OpGraph(
        name=source.name,
        batch_size=batch,
        inputs=tuple(inputs),
        ops=tuple(ops),
        outputs=tuple(dict.fromkeys(names[node] for node in output_node.all_input_nodes if node in names)),
        parameters=parameters,
        buffer_bytes=sum(_bytes(buffer) for buffer in traced.root.buffers()),
        target_bytes=_target_bytes(source, batch),
    )
    return Profile(
        graph=graph,
        storages={
            names[node]: storage_id(run.leaves[0])
            for node, run in small.runs.items()
            if node in names and len(run.leaves) == 1
        },
        mutations={names[node]: run.mutated for node, run in small.runs.items() if run.mutated},
        state_storages=small.state_storages,
    )


def _is_anyones(node: fx.Node, small: Any, large: Any, batch: int) -> bool:
    """Whether every batched tensor at hand has this value: the device, or the size of the batch."""
    if node.target is getattr and node.args[1] == "device":
        return True
    takes_size = node.target in ("size", operator.getitem, len)
    return takes_size and type(small) is int and (small, large) == (batch, 2 * batch)


def _slope(small: int, large: int, batch: int) -> tuple[int, int]:
    """(per sample, constant) of a quantity seen at `batch` and at twice that; all per sample where it isn't linear."""
    per_sample = (large - small) // batch
    constant = small - per_sample * batch
    return (per_sample, constant) if constant >= 0 else (small // batch, 0)


def _per_sample(small: int, large: int, profiled: int, batch: int) -> float:
    """Lookups a sample; ids that come in another number than the samples are taken to be the example's share each."""
    return (large - small) / profiled if large > small else small / batch


def _value(name: str, run: _Run, large: _Run, profiled: int, batch: int, sees_data: bool) -> Value | None:
    if not isinstance(run.value, torch.Tensor):
        return None
    small_sizes, large_sizes = run.value.shape, large.value.shape
    grown = [axis for axis, (size, other) in enumerate(zip(small_sizes, large_sizes, strict=True)) if size != other]
    exact = len(grown) == 1 and small_sizes[grown[0]] == profiled and large_sizes[grown[0]] == 2 * profiled
    shape = tuple(
        int(size + (other - size) // profiled * (batch - profiled))
        for size, other in zip(small_sizes, large_sizes, strict=True)
    )
    per_sample, constant = _slope(_bytes(run.value), _bytes(large.value), profiled)
    return Value(
        name=name,
        shape=shape,
        dtype=str(run.value.dtype).removeprefix("torch."),
        kind="batched" if exact else "per-rank" if sees_data or grown else "replicated",
        batch_axis=grown[0] if exact else None,
        bytes_per_sample=per_sample,
        constant_bytes=constant,
        requires_grad=run.value.requires_grad,
    )


def _parameters(root: nn.Module) -> tuple[tuple[Parameter, ...], dict[int, str]]:
    """Every parameter once, and the name of each tensor of the module tree by identity."""
    names: dict[int, list[str]] = {}
    tensors: dict[int, nn.Parameter] = {}
    for name, parameter in root.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
        tensors[id(parameter)] = parameter
    parameters = tuple(
        Parameter(
            name=names[key][0],
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            elements=tensor.numel(),
            bytes=_bytes(tensor),
            trainable=tensor.requires_grad,
            aliases=tuple(names[key][1:]),
        )
        for key, tensor in tensors.items()
    )
    canonical = {key: listed[0] for key, listed in names.items()}
    for name, buffer in root.named_buffers():
        canonical.setdefault(id(buffer), name)
    return parameters, canonical


def _state_read(node: fx.Node, traced: Trace, canonical: dict[int, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the parameters and of the buffers that a call reads."""
    tensors: list[torch.Tensor] = []
    if node.op == "call_module":
        module = traced.root.get_submodule(str(node.target))
        tensors += [*module.parameters(), *module.buffers()]
    for argument in node.all_input_nodes:
        if argument.op == "get_attr":
            held = attribute(traced.root, argument.target)
            tensors += [held] if isinstance(held, torch.Tensor) else []
    names = dict.fromkeys(
        (canonical[id(tensor)], isinstance(tensor, nn.Parameter)) for tensor in tensors if id(tensor) in canonical
    )
    return tuple(name for name, is_parameter in names if is_parameter), tuple(
        name for name, is_parameter in names if not is_parameter
    )


def _kind(node: fx.Node, root: nn.Module) -> str:
    if node.op == "call_module":
        return type(root.get_submodule(str(node.target))).__name__
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _target_bytes(source: Source, batch: int) -> int:
    if source.hooks.loss_fn is None:
        return 0
    return sum(map(_bytes, tensors_in(source.targets))) // batch
