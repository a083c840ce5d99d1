"""From a graph of calls to the lines of a forward method."""

import builtins
import inspect
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from stanza_compiler.errors import EmitError
from stanza_compiler.structure import ByMode, Fixed, Slot, Structure
from stanza_compiler.text import quoted
from stanza_compiler.traced import Autocast, Gradients, Mode, Region, choose, regions
from stanza_compiler.variables import inlined_sizes, variable_names

_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
_UNARY = {"neg": "-", "pos": "+", "invert": "~", "not_": "not "}
_NAMESPACES = (
    ("F", torch.nn.functional),
    ("torch", torch),
    ("torch.linalg", torch.linalg),
    ("torch.fft", torch.fft),
    ("torch.special", torch.special),
    ("operator", operator),
    ("builtins", builtins),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One statement and the source line that it stands for."""

    code: str
    source: str


@dataclass(frozen=True, slots=True)
class Body:
    """A method's parameter names, its lines, the last one returning, and the import lines they need."""

    parameters: tuple[str, ...]
    lines: tuple[Line, ...]
    imports: tuple[str, ...]


def body(
    graph: fx.Graph,
    *,
    access: Callable[[str], str],
    source: Callable[[fx.Node], str],
    is_size: frozenset[str],
    result: Structure | None = None,
) -> Body:
    """Write `graph` as a person would: a value takes over the name of the one that dies in making it.

    `access` turns a module, parameter or buffer path into an expression, `source` a node into its source line;
    `result` is the structure in which the last segment returns its values.
    Raises EmitError for a function that no import reaches and for a value that has no literal.
    """
    return _Writer(graph, access, source, is_size, result).body()


class _Writer:
    def __init__(
        self,
        graph: fx.Graph,
        access: Callable[[str], str],
        source: Callable[[fx.Node], str],
        is_size: frozenset[str],
        result: Structure | None,
    ) -> None:
        self.nodes, self.result = list(graph.nodes), result
        self.access, self.source = access, source
        self.imports: dict[str, None] = {}
        self.inlined = inlined_sizes(self.nodes, is_size)
        functions = [node.target for node in self.nodes if node.op == "call_function" and not _namespace(node.target)]
        taken = (str(getattr(function, "__name__", "")) for function in functions)
        self.variables = variable_names(self.nodes, self.inlined, is_size, taken)

    def body(self) -> Body:
        lines: list[Line] = []
        inside: tuple[Region, ...] = ()
        for node in self.nodes:
            if node.op in ("placeholder", "get_attr") or node in self.inlined:
                continue
            if node.op == "output":
                lines += self._return(node, lines)
                continue
            if regions(node) != inside:
                lines += _entering(inside, regions(node))
                inside = regions(node)
            lines.append(Line("    " * len(inside) + self._statement(node), self.source(node)))
        parameters = tuple(self.variables[node] for node in self.nodes if node.op == "placeholder")
        return Body(parameters, tuple(lines), tuple(self.imports))

    def _return(self, output: fx.Node, lines: list[Line]) -> list[Line]:
        """The statements that return; the last of `lines` is taken back where it can itself return."""
        values = output.args[0]
        if self.result is None:
            texts = [self._text(values, top=True)]
        else:
            assert isinstance(values, tuple)
            texts = [self._built(result, values) for result in _by_mode(self.result)]
        if len(texts) == 2:
            return [Line("if self.training:", ""), Line(f"    return {texts[0]}", ""), Line(f"return {texts[1]}", "")]
        last = lines[-1] if lines else Line("", "")
        if last.code.startswith(f"{texts[0]} = "):
            lines.pop()
            return [Line(f"return {last.code.removeprefix(f'{texts[0]} = ')}", last.source)]
        return [Line(f"return {texts[0]}", "")]

    def _built(self, result: Structure, values: tuple[Any, ...]) -> str:
        """The expression for a structure that holds `values`."""
        match result:
            case Slot(index):
                return self._text(values[index], top=True)
            case Fixed(value):
                return self._text(value, top=True)
            case ByMode():
                raise AssertionError("modes differ at the top alone")
        texts = [self._built(child, values) for child in result.children]
        if issubclass(result.kind, dict):
            pairs = ", ".join(
                f"{self._text(key, top=True)}: {text}" for key, text in zip(result.names, texts, strict=True)
            )
            if result.kind is dict:
                return f"{{{pairs}}}"
            return f"{'Record' if result.is_record else self._class(result.kind)}({{{pairs}}})"
        if result.names:
            fields = ", ".join(f"{name}={text}" for name, text in zip(result.names, texts, strict=True))
            return f"{self._class(result.kind)}({fields})"
        if result.kind is list:
            return f"[{', '.join(texts)}]"
        return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"

    # Text

    def _statement(self, node: fx.Node) -> str:
        if node.op == "call_function" and node.target is operator.setitem:
            base, index, value = node.args
            return f"{self._text(base)}[{self._index(index)}] = {self._text(value, top=True)}"
        expression = self._expression(node)
        if not node.users:
            return expression
        return f"{self.variables[node]} = {expression}"

    def _expression(self, node: fx.Node) -> str:
        if node.op == "call_module":
            return f"{self.access(str(node.target))}({self._call_arguments(node.args, node.kwargs)})"
        if node.op == "call_method":
            base, *rest = node.args
            return f"{self._text(base)}.{node.target}({self._call_arguments(tuple(rest), node.kwargs)})"
        target: Any = node.target
        name = getattr(target, "__name__", "")
        if target is choose:
            flag, here, there = (self._text(argument) for argument in node.args)
            return f"{here} if {flag} else {there}"
        if target is getattr and isinstance(node.args[1], str) and node.args[1].isidentifier():
            return f"{self._text(node.args[0])}.{node.args[1]}"
        if _is_operation(node):
            texts = [self._text(argument) for argument in node.args]
            return f"{_UNARY[name]}{texts[0]}" if len(texts) == 1 else f"{texts[0]} {_BINARY[name]} {texts[1]}"
        if target is operator.getitem:
            return f"{self._text(node.args[0])}[{self._index(node.args[1])}]"
        told = {name: value for name, value in node.kwargs.items() if not _is_default(target, name, value)}
        return f"{self._function(target, node)}({self._call_arguments(node.args, told)})"

    def _call_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        texts = [self._text(argument, top=True) for argument in args]
        return ", ".join([*texts, *(f"{name}={self._text(value, top=True)}" for name, value in kwargs.items())])

    def _function(self, target: Any, node: fx.Node) -> str:
        found = _namespace(target)
        if found is None:
            return self._imported(target, node)
        prefix, name = found
        if prefix == "operator":
            self.imports["import operator"] = None
        return name if prefix == "builtins" else f"{prefix}.{name}"

    def _imported(self, target: Any, node: fx.Node) -> str:
        module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", "")
        outer = name.partition(".")[0]
        if not module or not name.replace(".", "").isidentifier() or not hasattr(sys.modules.get(module), outer):
            place = self.source(node) or node.name
            raise EmitError(place, f"{name or repr(target)} can't be imported", "define it at the top of a module")
        self.imports[f"from {module} import {outer}"] = None
        return str(name)

    def _index(self, index: Any) -> str:
        if isinstance(index, tuple) and index:
            return ", ".join(self._index(part) for part in index) + ("," if len(index) == 1 else "")
        if isinstance(index, slice):
            parts = ["" if part is None else self._text(part) for part in (index.start, index.stop, index.step)]
            return f"{parts[0]}:{parts[1]}" + (f":{parts[2]}" if parts[2] else "")
        return self._text(index, top=True)

    def _text(self, value: Any, *, top: bool = False) -> str:
        """An argument as source text; `top` says that no operator stands beside it."""
        match value:
            case fx.Node() if value.op == "get_attr":
                return self.access(str(value.target))
            case fx.Node() if value in self.inlined:
                text = self._expression(value)
                return f"({text})" if value.target is choose or (_is_operation(value) and not top) else text
            case fx.Node():
                return self.variables[value]
            case str():
                return quoted(value)
            case bool() | int() | None:
                return f"({value})" if isinstance(value, int) and value < 0 and not top else repr(value)
            case float():
                text = repr(value) if value == value and abs(value) != float("inf") else f'float("{value}")'
                return f"({text})" if text.startswith("-") and not top else text
            case complex():
                return f"complex({value.real!r}, {value.imag!r})"
            case slice():
                return (
                    f"slice({', '.join(self._text(part, top=True) for part in (value.start, value.stop, value.step))})"
                )
            case dict():
                items = ", ".join(
                    f"{self._text(key, top=True)}: {self._text(item, top=True)}" for key, item in value.items()
                )
                return self._typed(value, dict, f"{{{items}}}")
            case tuple() if hasattr(value, "_fields"):
                fields = ", ".join(
                    f"{name}={self._text(item, top=True)}" for name, item in zip(value._fields, value, strict=True)
                )
                return f"{self._class(type(value))}({fields})"
            case tuple():
                items = ", ".join(self._text(item, top=True) for item in value)
                return f"({items}{',' if len(value) == 1 else ''})"
            case list():
                return f"[{', '.join(self._text(item, top=True) for item in value)}]"
            case torch.device():
                return f'torch.device("{value}")'
            case torch.dtype() | torch.memory_format() | torch.layout() | range():
                return str(value)
            case _ if value is Ellipsis:
                return "..."
            case type():
                return self._class(value)
        raise EmitError(
            "forward", f"a {type(value).__name__} has no literal in generated code", "pass it as a tensor or number"
        )

    def _typed(self, value: Any, plain: type, text: str) -> str:
        if type(value) in (plain, fx.immutable_collections.immutable_dict):
            return text
        return f"{self._class(type(value))}({text})"

    def _class(self, kind: type) -> str:
        if getattr(builtins, kind.__name__, None) is kind:
            return str(kind.__name__)
        outer = kind.__qualname__.partition(".")[0]
        self.imports[f"from {kind.__module__} import {outer}"] = None
        return kind.__qualname__


def _is_operation(node: fx.Node) -> bool:
    """Whether a call is written with Python's operator between or before its arguments."""
    name = getattr(node.target, "__name__", "")
    known = _UNARY if len(node.args) == 1 else _BINARY if len(node.args) == 2 else {}
    return name in known and getattr(operator, name, None) is node.target and not node.kwargs


def _by_mode(result: Structure) -> tuple[Structure, ...]:
    return (result.training, result.evaluation) if isinstance(result, ByMode) else (result,)


def _entering(before: tuple[Region, ...], now: tuple[Region, ...]) -> list[Line]:
    """The lines that open the blocks of `now` that don't stand open in `before`."""
    shared = 0
    while shared < min(len(before), len(now)) and before[shared] == now[shared]:
        shared += 1
    return [Line("    " * depth + _opening(now[depth]), "") for depth in range(shared, len(now))]


def _opening(region: Region) -> str:
    match region:
        case Mode(training):
            return "if self.training:" if training else "if not self.training:"
        case Gradients(enabled):
            return "with torch.enable_grad():" if enabled else "with torch.no_grad():"
        case Autocast(device_type, dtype, enabled):
            return f"with torch.autocast({quoted(device_type)}, {dtype}{'' if enabled else ', enabled=False'}):"


def _namespace(function: Any) -> tuple[str, str] | None:
    """The (namespace, name) by which every file reaches a function of torch's or Python's own."""
    if isinstance(function, torch._ops.OpOverload):
        return "torch.ops", str(function)
    own = getattr(function, "__name__", "")
    for prefix, namespace in _NAMESPACES:
        if getattr(namespace, own, None) is function:
            return prefix, own
        if prefix.startswith("torch."):  # torch.linalg.norm calls itself linalg_norm
            for name, value in vars(namespace).items():
                if value is function:
                    return prefix, name
    return None


def _is_default(function: Any, name: str, value: Any) -> bool:
    """Whether a Python function would take this value for the keyword anyway."""
    if not inspect.isfunction(function) or isinstance(value, fx.Node):
        return False
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and type(value) is type(parameter.default) and bool(value == parameter.default)
