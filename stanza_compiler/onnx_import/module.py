"""The module that runs an imported graph."""

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from stanza_compiler.onnx_import.values import Attr, Ref, Target, bound, mapped


@dataclass(frozen=True, slots=True)
class Step:
    """One call: of what, on what, and the number of the ONNX node that it stands for."""

    target: Target
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    node: int


class OnnxModule(nn.Module):
    """Runs its steps one after the other; every one calls torch on the module's own parameters and buffers.

    A line number in a stack trace is that of the node in the ONNX file, counted from 1.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = str(path)
        self._steps: tuple[tuple[Step, Callable[..., Any]], ...] = ()
        self._outputs: tuple[Ref | Attr, ...] = ()

    def set_program(self, steps: Iterable[Step], outputs: Iterable[Ref | Attr]) -> None:
        """What to run and which values to return."""
        self._steps = tuple((step, _caller(self._path, step.node)) for step in steps)
        self._outputs = tuple(outputs)

    def run(self, *inputs: Any) -> Any:
        """The graph's output, a tuple when it has several."""
        values = list(inputs)

        def resolve(leaf: Any) -> Any:
            match leaf:
                case Ref():
                    return values[leaf.index]
                case Attr():
                    *parents, last = leaf.path.split(".")
                    return getattr(self.get_submodule(".".join(parents)), last)
            return leaf

        for step, call in self._steps:
            function, args = bound(step.target, mapped(resolve, step.args), self)
            values.append(call(function, args, mapped(resolve, step.kwargs)))
        outputs = tuple(resolve(output) for output in self._outputs)
        return outputs[0] if len(outputs) == 1 else outputs


def _caller(path: str, node: int) -> Callable[..., Any]:
    """A function that calls a function, and stands in line `node` of the ONNX file, as a template engine's do.

    Tracers and tracebacks take the innermost frame outside of torch for the user's line.
    """
    tree = ast.parse("lambda function, args, kwargs: function(*args, **kwargs)", mode="eval")
    caller: Callable[..., Any] = eval(compile(ast.increment_lineno(tree, node - 1), path, "eval"))
    return caller


def empty_module(names: tuple[str, ...], path: Path) -> OnnxModule:
    """A module without steps whose forward takes `names`, which are identifiers."""
    assert all(name.isidentifier() for name in names)
    arguments = ", ".join(names)
    scope: dict[str, Any] = {}
    # Tracers read forward's own signature and code, so that it has to be a real function.
    exec(f"def forward(self, {arguments}):\n    return self.run({arguments})\n", scope)
    kind: type[OnnxModule] = type("OnnxModule", (OnnxModule,), {"forward": scope["forward"]})
    return kind(path)
