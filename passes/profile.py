"""From a traced model to plain numbers per op, without running the model."""

import copy
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from stanza_compiler.errors import ProfileError
from stanza_compiler.loader import Source, first_line
from stanza_compiler.opgraph import Op, OpGraph, Parameter, Value
from stanza_compiler.passes.trace import Trace, attribute
from stanza_compiler.sources import node_source

# aten ops that multiply and add but that torch.utils.flop_counter has no formula for.
_COMPUTE = re.compile(
    r"^(?!_thnn_fused).*(lstm|gru|rnn|attention|_fft|linalg|cdist|cholesky|svd|trilinear|conv(olution)?)"
)


@dataclass(slots=True)
class _Run:
    """What one node did at one batch size."""

    leaves: list[torch.Tensor] = field(default_factory=list)
    value: Any = None
    forward_flops: int = 0
    backward_flops: int = 0
    memory_bytes: int = 0
    mutated: tuple[int, ...] = ()
    uncounted: tuple[str, ...] = ()
    is_random: bool = False


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

    FLOPs are torch.utils.flop_counter's, 2 per multiply-add; per sample they are the slope over the two
    batches. Ops that compute but that the counter doesn't know are listed in Op.uncounted. Raises
    ProfileError with the op and its line when one can't be profiled.
    """
    batch = max(source.call.batch_size, 2)
    small = _Interpreter(source, traced, batch)
    large = _Interpreter(source, traced, 2 * batch)
    return _assembled(source, traced, small, large)


class _Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves __init_subclass__ untyped
    """Notes per node which storages are written, whether random numbers are drawn, which compute has no formula."""

    def __init__(self, counted: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.counted = counted
        self.reset()

    def reset(self) -> None:
        self.mutated: list[torch.Tensor] = []
        self.uncounted: list[str] = []
        self.is_random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        if schema.is_mutable:
            for index, argument in enumerate(schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    written = args[index] if index < len(args) else kwargs.get(argument.name)
                    self.mutated += _tensors(written)
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.is_random = True
        packet = func.overloadpacket
        if packet not in self.counted and _COMPUTE.search(packet.__name__) and "backward" not in packet.__name__:
            self.uncounted.append(packet.__name__)
        return func(*args, **kwargs)


class _Interpreter(fx.Interpreter):
    """Runs the graph on fake tensors at one batch size, node by node, forward and backward."""

    def __init__(self, source: Source, traced: Trace, batch: int) -> None:
        self.source, self.traced, self.batch = source, traced, batch
        self.runs: dict[fx.Node, _Run] = {}
        self.same_storage: dict[int, int] = {}
        self.alive: list[torch.Tensor] = []  # a storage's address names it only while it lives
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.counter = FlopCounterMode(display=False)
        self.dispatch = _Dispatch(self.counter.flop_registry)
        root, self.state = _fake_copy(traced.root, self.mode)
        super().__init__(root, garbage_collect_values=False, graph=traced.graph)
        with torch.random.fork_rng(), self.mode, sdpa_kernel(SDPBackend.MATH), self.counter, self.dispatch:
            examples = [_fake_input(leaf.example, leaf.batch_axis, batch) for leaf in source.call.leaves]
            self.run(*examples)

    def run_node(self, n: fx.Node) -> Any:
        if n.op in ("placeholder", "get_attr", "output"):
            value = super().run_node(n)
            self.runs[n] = _Run(leaves=_tensors(value), value=value)
            return value
        run = self.runs[n] = _Run()
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        inputs = _tensors((args, kwargs))
        args, kwargs = self._cut_off(args, kwargs)
        before = self.counter.get_total_flops()
        self.dispatch.reset()
        try:
            with torch.enable_grad():
                value = getattr(self, n.op)(n.target, args, kwargs)
        except Exception as error:
            place = node_source(n, self.source.root) or self.source.place
            cause = f"{type(error).__name__}: {first_line(error)}"
            what = f"{self.traced.names[n]} can't be profiled at batch {self.batch}: {cause}"
            raise ProfileError(place, what, "make the line work at any batch size") from error
        run.value = value
        run.leaves = _tensors(value)
        run.forward_flops = self.counter.get_total_flops() - before
        run.mutated = tuple(dict.fromkeys(map(self.storage_id, self.dispatch.mutated)))
        run.uncounted = tuple(dict.fromkeys(self.dispatch.uncounted))
        run.is_random = self.dispatch.is_random
        run.memory_bytes = self._memory_bytes(n, inputs, run.leaves)
        run.backward_flops = self._backward_flops(run.leaves)
        return value

    def _cut_off(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as heads of their own graph; what stands in for a tensor counts as lying in its storage."""

        def cut(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or isinstance(leaf, nn.Parameter) or not leaf.requires_grad:
                return leaf
            # An in-place op refuses a leaf, hence the clone.
            stand_in = leaf.detach().requires_grad_().clone()
            self.same_storage[_storage(stand_in)] = self.storage_id(leaf)
            self.alive.append(stand_in)
            return stand_in

        cut_args: tuple[Any, ...] = pytree.tree_map(cut, args)
        cut_kwargs: dict[str, Any] = pytree.tree_map(cut, kwargs)
        return cut_args, cut_kwargs

    def storage_id(self, tensor: torch.Tensor) -> int:
        """One number for all tensors that share memory."""
        storage = _storage(tensor)
        return self.same_storage.get(storage, storage)

    def _memory_bytes(self, node: fx.Node, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> int:
        """Bytes read and written; nothing for a view."""
        kept = {self.storage_id(tensor) for tensor in inputs}
        moved = [tensor for tensor in outputs if self.storage_id(tensor) not in kept]
        if not moved and not self.dispatch.mutated:
            return 0
        weights = self.fetch_attr(str(node.target)).parameters() if node.op == "call_module" else ()
        return sum(map(_bytes, [*inputs, *outputs, *weights]))

    def _backward_flops(self, outputs: list[torch.Tensor]) -> int:
        heads = [tensor for tensor in outputs if tensor.requires_grad and tensor.grad_fn is not None]
        if not heads:
            return 0
        before = self.counter.get_total_flops()
        torch.autograd.backward(heads, [torch.ones_like(head) for head in heads])
        return int(self.counter.get_total_flops() - before)


def _fake_copy(root: nn.Module, mode: FakeTensorMode) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A copy of the module tree whose parameters, buffers and tensor attributes hold no data; ties stay ties."""
    memo: dict[int, Any] = {}
    for module in root.modules():
        for tensor in [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]:
            if isinstance(tensor, torch.Tensor) and id(tensor) not in memo:
                fake = mode.from_tensor(tensor.detach(), static_shapes=True)
                memo[id(tensor)] = (
                    nn.Parameter(fake, tensor.requires_grad)
                    if isinstance(tensor, nn.Parameter)
                    else fake.requires_grad_(tensor.requires_grad)
                )
    fake_root = copy.deepcopy(root, memo)
    state = {**dict(fake_root.named_parameters()), **dict(fake_root.named_buffers())}
    return fake_root, state


def _fake_input(example: torch.Tensor, batch_axis: int | None, batch: int) -> torch.Tensor:
    sizes = [batch if axis == batch_axis else size for axis, size in enumerate(example.shape)]
    return torch.empty(sizes, dtype=example.dtype, device=example.device, requires_grad=example.requires_grad)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


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
        op = Op(
            name=names[node],
            kind=_kind(node, traced.root),
            inputs=tuple(dict.fromkeys(names[other] for other in node.all_input_nodes if other in names)),
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
            is_size=not run.leaves and not run.mutated,
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
            names[node]: small.storage_id(run.leaves[0])
            for node, run in small.runs.items()
            if node in names and len(run.leaves) == 1
        },
        mutations={names[node]: run.mutated for node, run in small.runs.items() if run.mutated},
        state_storages={small.storage_id(tensor): name for name, tensor in small.state.items()},
    )


def _slope(small: int, large: int, batch: int) -> tuple[int, int]:
    """(per sample, constant) of a quantity seen at `batch` and at twice that; all per sample where it isn't linear."""
    per_sample = (large - small) // batch
    constant = small - per_sample * batch
    return (per_sample, constant) if constant >= 0 else (small // batch, 0)


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
    return sum(map(_bytes, _tensors(source.targets))) // batch
