"""From a module to a graph of its calls that is equal to it."""

import copy
import itertools
import linecache
import math
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from stanza_compiler.call import Call
from stanza_compiler.comparison import Observation, difference, observe
from stanza_compiler.errors import TraceError
from stanza_compiler.loader import Source, first_line, user_code, user_line
from stanza_compiler.sources import node_source


@dataclass(frozen=True, slots=True)
class Trace:
    """The traced model: `root` is a copy of it that shares its parameters, `graph` its calls in program order.

    `names` gives each call's op name: its module path (`classifier.1`, the second call `classifier.1#2`),
    else its fx node name.
    """

    root: nn.Module
    graph: fx.Graph
    names: dict[fx.Node, str]
    front_end: str

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Call the graph as the model is called; no code is generated, so that no name can break it."""
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        interpreter = fx.Interpreter(self.root, graph=self.graph)
        interpreter.extra_traceback = False  # it would rewrite the errors' messages
        return interpreter.run(*leaves)

    def __str__(self) -> str:
        return str(self.graph)


@dataclass(frozen=True, slots=True)
class _Step:
    batch: int
    training: bool


class _Tracer(fx.Tracer):
    """symbolic_trace with torch.nn modules as leaves and the example call's own argument structure.

    Only the call's tensors become placeholders; everything else stays the value that the example gave, so that
    defaults, keywords and containers mean what they mean in eager mode.
    """

    def __init__(self, call: Call) -> None:
        super().__init__(autowrap_modules=(math,))
        self.record_stack_traces = True
        self.call = call

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        proxies = [self.create_proxy("placeholder", leaf.name, (), {}) for leaf in self.call.leaves]
        args, kwargs = self.call.rebuild(proxies)

        def called(root: nn.Module, *_: Any) -> Any:
            return root_fn(root, *args, **kwargs)

        return called, [self.root, *proxies]


def trace(source: Source, *, front_end: str = "auto", verify: bool = True) -> Trace:
    """Trace a copy of the model by torch.fx; with `verify`, believe it only once it equals the eager model.

    Equal means: outputs, loss and gradients in train mode, outputs in eval mode, at two batch sizes. Raises TraceError
    with the user's line and the cause.
    """
    if front_end == "export":
        raise TraceError(source.place, "the torch.export front-end isn't built yet", "use --trace fx")
    expected = _observe_eagerly(source) if verify else []
    traced = _traced(source, training=source.module.training)
    _forbid_frozen(source, traced, _traced(source, training=not source.module.training))
    _compare(source, traced, expected)
    return traced


def _traced(source: Source, *, training: bool) -> Trace:
    """One symbolic trace of a copy of the model in the given mode, with random numbers of that mode's own."""
    root = copy_sharing_parameters(source.module)
    modes = [module.training for module in root.modules()]
    root.train(training)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(int(training))
            graph = _Tracer(source.call).trace(root)
    except Exception as error:
        raise _refusal(source, error) from error
    for module, mode in zip(root.modules(), modes, strict=True):
        module.training = mode
    _keep_placeholder_names(graph, source.call)
    return Trace(root, graph, _op_names(graph), "fx")


def _forbid_frozen(source: Source, traced: Trace, other: Trace) -> None:
    """Raise TraceError where the trace in the other mode, with other random numbers, is not the same graph.

    fx keeps what Python made of a training flag or drew at random while tracing; small effects would pass a comparison.
    """
    for node, twin in itertools.zip_longest(traced.graph.nodes, other.graph.nodes):
        if node is None or twin is None or _calls(node) != _calls(twin):
            what = "torch.fx freezes the train or eval mode it was traced in"
        elif node.op == "get_attr" and _changed(
            attribute(traced.root, node.target), attribute(other.root, twin.target)
        ):
            what = "torch.fx freezes random numbers that are drawn there"
        else:
            continue
        place = next(
            (line for n in (node, twin) if n is not None and (line := node_source(n, source.root))), source.place
        )
        raise TraceError(place, what, "use a torch.nn module for it, such as nn.Dropout")


def _calls(node: fx.Node) -> tuple[object, ...]:
    """What a node calls on what, in a form that equals another trace's."""
    return node.op, str(node.target) if isinstance(node.target, str) else node.target, str(node.args), str(node.kwargs)


def _changed(one: Any, other: Any) -> bool:
    return isinstance(one, torch.Tensor) and one is not other and not torch.equal(one, other)


def attribute(root: nn.Module, target: object) -> Any:
    """What a get_attr node's dotted target reaches."""
    *path, last = str(target).split(".")
    return getattr(root.get_submodule(".".join(path)), last)


def copy_sharing_parameters(module: nn.Module) -> nn.Module:
    """A deep copy with modules and buffers of its own but the same parameters."""
    memo = {id(parameter): parameter for parameter in module.parameters()}
    return copy.deepcopy(module, memo)


def _observe_eagerly(source: Source) -> list[tuple[_Step, Observation]]:
    """A training step at batch 2 and an eval forward at batch 3, or both at the example's batch if it takes no other.

    The user's own mistakes show here, before any front-end can stumble over them.
    """
    steps = (_Step(2, training=True), _Step(3, training=False))
    try:
        return [(step, observe(source.module, source, batch=step.batch, training=step.training)) for step in steps]
    except Exception:
        own = [_Step(source.call.batch_size, training=step.training) for step in steps]
        with user_code(source.place, "one training step on the example inputs", source.root):
            return [(step, observe(source.module, source, batch=step.batch, training=step.training)) for step in own]


def _refusal(source: Source, error: Exception) -> TraceError:
    place = user_line(error, source.root) or _any_line(error) or source.place
    first = first_line(error)
    cause = first.partition(". See the torch.fx docs")[0].partition(". This can be attempted")[0]
    if "control flow" in first:
        cause = f"the branch `{_code_at(source, place)}` depends on a tensor"
        remedy = "use torch.where, or decide it outside forward()"
    elif isinstance(error, TypeError):
        remedy = "replace Python arithmetic on tensors or sizes there by torch functions"
    else:
        remedy = "rewrite that line in torch operations"
    return TraceError(place, f"torch.fx can't trace this: {cause}", remedy)


def _any_line(error: Exception) -> str:
    torch_folder = Path(torch.__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if not path.is_relative_to(torch_folder) and not path.is_relative_to(Path(__file__).resolve().parent):
            return f"{path.name}:{frame.lineno}" if "stanza_compiler" not in path.parts else ""
    return ""


def _code_at(source: Source, place: str) -> str:
    file, _, line = place.rpartition(":")
    text = linecache.getline(str(source.root / file), int(line)) if line.isdigit() else ""
    return text.strip().removesuffix(":") or place


def _keep_placeholder_names(graph: fx.Graph, call: Call) -> None:
    """fx may rename a placeholder that looks like a builtin; generated code calls it as the call does."""
    for node, leaf in zip([node for node in graph.nodes if node.op == "placeholder"], call.leaves, strict=True):
        node.target = leaf.name


def _op_names(graph: fx.Graph) -> dict[fx.Node, str]:
    calls: Counter[str] = Counter()
    names = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            name = str(node.target)
        elif node.op in ("call_module", "call_function", "call_method"):
            name = str(node.target) if node.op == "call_module" else node.name
        else:
            continue
        calls[name] += 1
        names[node] = name if calls[name] == 1 else f"{name}#{calls[name]}"
    return names


def _compare(source: Source, traced: Trace, expected: list[tuple[_Step, Observation]]) -> None:
    """Raise TraceError unless the graph equals the eager model."""
    for step, observation in expected:
        mode = f"at batch {step.batch} in {'train' if step.training else 'eval'} mode"
        try:
            actual = observe(traced.root, source, batch=step.batch, training=step.training, run=traced.run)
        except Exception as error:
            what = f"the graph traced by torch.fx fails {mode}: {type(error).__name__}: {first_line(error)}"
            raise TraceError(
                user_line(error, source.root) or source.place, what, "rewrite that line in torch functions"
            ) from error
        first = difference(observation, actual).first
        if first:
            what = f"the graph traced by torch.fx is not the model: {mode} {first}"
            raise TraceError(source.place, what, "look for Python branches, random numbers or modes that tracing froze")
