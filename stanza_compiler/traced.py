"""A traced model as a graph that follows the model's mode, with what runs it."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from stanza_compiler.module_copy import copied
from stanza_compiler.structure import Structure, put_together

FrontEnd = Literal["fx", "export"]
TOOLS: dict[FrontEnd, str] = {"fx": "torch.fx", "export": "torch.export"}
_REGIONS = "regions"


@dataclass(frozen=True, slots=True)
class Mode:
    """The calls inside run in one mode of the model alone: while it trains, or while it doesn't."""

    training: bool


@dataclass(frozen=True, slots=True)
class Gradients:
    """torch.no_grad() or torch.enable_grad() around calls."""

    enabled: bool


@dataclass(frozen=True, slots=True)
class Autocast:
    """torch.autocast around calls."""

    device_type: str
    dtype: torch.dtype
    enabled: bool


Region = Mode | Gradients | Autocast


def regions(node: fx.Node) -> tuple[Region, ...]:
    """What a call runs in, the outermost region first."""
    found: tuple[Region, ...] = node.meta.get(_REGIONS, ())
    return found


def set_regions(node: fx.Node, inside: tuple[Region, ...]) -> None:
    """Let a call, as its tracer makes it, run in `inside`."""
    node.meta[_REGIONS] = inside


def choose(training: bool, in_training: Any, otherwise: Any) -> Any:
    """The value of a graph that depends on the model's mode."""
    return in_training if training else otherwise


@dataclass(frozen=True, slots=True)
class Trace:
    """The traced model: `root` is a copy of it that shares its parameters, `graph` its calls in program order.

    `names` gives each call's op name: its module path (`classifier.1`, the second call `classifier.1#2`),
    else its fx node name. The graph returns a flat tuple; `result` is the structure of the model's own output.
    `front_end` is what traced it, `why` the reason when that is the second choice. `opaque` are the modules that are
    kept whole as the user's own class, each with the reason.
    """

    root: nn.Module
    graph: fx.Graph
    names: dict[fx.Node, str]
    result: Structure
    front_end: FrontEnd
    why: str = ""
    opaque: dict[str, str] = field(default_factory=dict)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Call the graph as the model is called; no code is generated, so that no name can break it."""
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        return Interpreter(self).run(*leaves)

    def __str__(self) -> str:
        return str(self.graph)


class Interpreter(fx.Interpreter):
    """Runs a trace on its input tensors, each call in its regions; subclasses override run_call.

    What the model's mode leaves out has the value None.
    """

    def __init__(self, traced: Trace, root: nn.Module | None = None, *, keeps_values: bool = False) -> None:
        super().__init__(root or traced.root, garbage_collect_values=not keeps_values, graph=traced.graph)
        self.extra_traceback = False  # it would rewrite the errors' messages
        self.traced = traced

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output in its own structure."""
        values = super().run(*args, **kwargs)
        return put_together(self.traced.result, values, training=self.module.training)

    def run_node(self, n: fx.Node) -> Any:
        with _entered(regions(n)):
            return self.run_call(n) if self.is_live(n) else self.leave_out(n)

    def is_live(self, node: fx.Node) -> bool:
        """Whether the model's mode lets a call run."""
        return all(region.training == self.module.training for region in regions(node) if isinstance(region, Mode))

    def run_call(self, node: fx.Node) -> Any:
        """The value of a node that the mode lets run."""
        return super().run_node(node)

    def leave_out(self, node: fx.Node) -> None:
        """What happens instead of a call that the mode leaves out."""


@contextlib.contextmanager
def _entered(inside: tuple[Region, ...]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for region in inside:
            match region:
                case Gradients(enabled):
                    stack.enter_context(torch.set_grad_enabled(enabled))
                case Autocast(device_type, dtype, enabled):
                    stack.enter_context(torch.autocast(device_type, dtype, enabled))
        yield


def cut_off(arguments: Any) -> Any:
    """A call's arguments without what made them: gradients of the call's own backward end at them."""

    def cut(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, nn.Parameter) or not leaf.requires_grad:
            return leaf
        return leaf.detach().requires_grad_().clone()  # an in-place op refuses a leaf

    return pytree.tree_map(cut, arguments)


def attribute(root: nn.Module, target: object) -> Any:
    """What a get_attr node's dotted target reaches."""
    *path, last = str(target).split(".")
    return getattr(root.get_submodule(".".join(path)), last)


def copy_sharing_parameters(module: nn.Module) -> nn.Module:
    """A deep copy with modules and buffers of its own but the same parameters."""
    return copied(module, {id(parameter): parameter for parameter in module.parameters()})
