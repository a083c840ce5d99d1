"""Chooses the names and values that the templates print."""

import copy
import inspect
import math
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import fx, nn

from stanza_compiler.call import Call
from stanza_compiler.errors import EmitError
from stanza_compiler.expressions import Body, Line, body
from stanza_compiler.loader import Source
from stanza_compiler.opgraph import OpGraph
from stanza_compiler.passes.split import Segment, Stages
from stanza_compiler.plan import Role
from stanza_compiler.sources import node_source
from stanza_compiler.state_lines import LINE_LENGTH, frozen_lines, state_lines
from stanza_compiler.state_tree import StateTree
from stanza_compiler.text import quoted

CLASS_NAMES: dict[Role, str] = {"conv": "ConvStage", "fc": "FcStage", "model": "ModelStage"}
FILE_NAMES: dict[Role, str] = {"conv": "conv_stage", "fc": "fc_stage", "model": "model_stage"}
COMMENT_COLUMN = 60


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a stage as text."""

    name: str
    parameters: tuple[str, ...]
    doc: tuple[str, ...]
    lines: tuple[str, ...]
    takes: tuple[str, ...]
    gives: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StageFile:
    """What conv_stage.py, fc_stage.py or model_stage.py says."""

    role: Role
    class_name: str
    module_name: str
    imports: tuple[str, ...]
    state: tuple[str, ...]
    methods: tuple[Method, ...]
    has_record: bool


def stage_file(role: Role, stages: Stages, tree: StateTree, graph: OpGraph, source: Source) -> StageFile:
    """The text of the stage that `role` trains, deterministic for equal input."""
    segments = stages.of(role)
    is_size = frozenset(op.name for op in graph.ops if op.is_size)
    methods, imports = [], ["import torch", "from torch import nn"]
    for segment in segments:
        flat = _with_sequences(segment.graph, tree)
        written = body(
            flat,
            access=tree.access,
            source=lambda node: node_source(node, source.root),
            is_size=is_size,
            result=segment.result,
        )
        imports += written.imports
        name = "forward" if len(segments) == 1 else f"segment_{stages.segments.index(segment)}"
        methods.append(_method(name, segment, written, graph))
    state = [*_original(role, tree, source, imports), *state_lines(tree, role), *frozen_lines(tree, role)]
    code = "\n".join([*state, *(line for method in methods for line in method.lines)])
    if re.search(r"\bF\.", code):
        imports.append("from torch.nn import functional as F")
    if not re.search(r"\btorch\.", code):
        imports.remove("import torch")
    return StageFile(
        role=role,
        class_name=CLASS_NAMES[role],
        module_name=FILE_NAMES[role],
        imports=sorted_imports(imports),
        state=tuple(state),
        methods=tuple(methods),
        has_record=bool(re.search(r"\bRecord\(", code)),
    )


def _original(role: Role, tree: StateTree, source: Source, imports: list[str]) -> list[str]:
    """The statement that builds the user's model, from which a stage takes the modules that are kept whole."""
    opaque = [path for path, roles in tree.leaves.items() if role in roles and path in tree.opaque]
    if not opaque:
        return []
    if not source.recipe:
        raise EmitError(opaque[0], "can't be kept whole, nothing builds it again", "pass model.py with build_model()")
    imports.append(f"from {source.origin} import {source.recipe.removesuffix('()')}")
    return [f"original = {source.recipe}"]


def sorted_imports(lines: Iterable[str]) -> tuple[str, ...]:
    """Import lines once each: the standard library, then the rest, both by name."""
    unique = dict.fromkeys(lines)
    standard = {"import math", "import operator"}
    first = sorted(line for line in unique if line in standard)
    rest = sorted((line for line in unique if line not in standard), key=lambda line: (line.startswith("from"), line))
    return (*first, *([""] if first and rest else []), *rest)


def _method(name: str, segment: Segment, written: Body, graph: OpGraph) -> Method:
    takes = [
        f"{variable}: {_shape(graph, value)}" for variable, value in zip(written.parameters, segment.takes, strict=True)
    ]
    gives = ", ".join(f"{value} {_shape(graph, value)}" for value in segment.gives) or "the model's output"
    doc = textwrap.wrap(
        f"Take {', '.join(takes) or 'nothing'}; give {gives}.", LINE_LENGTH - 10, break_long_words=False
    )
    return Method(
        name, written.parameters, tuple(doc), tuple(map(_commented, _once(written.lines))), segment.takes, segment.gives
    )


def _shape(graph: OpGraph, name: str) -> str:
    return str(graph.value[name]).removeprefix(f"{name} ")


def _once(lines: tuple[Line, ...]) -> Iterable[Line]:
    """A source line is named where it begins, not on every statement that it becomes."""
    previous = ""
    for line in lines:
        yield Line(line.code, "" if line.source == previous else line.source)
        previous = line.source or previous


def _commented(line: Line) -> str:
    if not line.source:
        return line.code
    return f"{line.code:<{COMMENT_COLUMN}}  # {line.source}"


def _with_sequences(graph: fx.Graph, tree: StateTree) -> fx.Graph:
    """A copy of the graph in which calling all children of a Sequential in order is one call of the Sequential."""
    copied = copy.deepcopy(graph)
    sequences = [
        path
        for path, style in tree.styles.items()
        if style == "index" and type(tree.root.get_submodule(path)) is nn.Sequential
    ]
    for path in sorted(sequences, key=lambda path: -path.count(".")):
        _merge_calls(copied, path, [f"{path}.{name}" for name in tree.root.get_submodule(path)._modules])
    return copied


def _merge_calls(graph: fx.Graph, path: str, children: list[str]) -> None:
    calls = [node for node in graph.nodes if node.op == "call_module"]
    for head in [node for node in calls if node.target == children[0]]:
        chain = [head]
        while len(chain) < len(children):
            users = list(chain[-1].users)
            is_next = len(users) == 1 and users[0].op == "call_module" and users[0].target == children[len(chain)]
            if not is_next or users[0].args != (chain[-1],) or users[0].kwargs or chain[-1].next is not users[0]:
                break
            chain.append(users[0])
        if len(chain) < len(children) or head.kwargs or len(head.args) != 1:
            continue
        with graph.inserting_before(head):
            merged = graph.call_module(path, head.args)
        merged.meta.update(head.meta)
        chain[-1].replace_all_uses_with(merged)
        for node in reversed(chain):
            graph.erase_node(node)


@dataclass(frozen=True, slots=True)
class Signature:
    """How generated code takes the model's call apart: a signature, checks and a name for each tensor."""

    parameters: str
    arguments: str
    checks: tuple[str, ...]
    names: tuple[tuple[str, str], ...]


def call_signature(call: Call) -> Signature:
    """The text of `bind_inputs`: forward's own signature, its tensors by name, the rest held to what was compiled."""
    text: list[str] = []
    passed = []
    keyword_only = False
    for name, parameter in call.signature.parameters.items():
        match parameter.kind:
            case parameter.VAR_POSITIONAL:
                text.append(f"*{name}")
                passed.append(f"*{name}")
                keyword_only = True
            case parameter.VAR_KEYWORD:
                text.append(f"**{name}")
                passed.append(f"**{name}")
            case parameter.KEYWORD_ONLY:
                text += [] if keyword_only else ["*"]
                keyword_only = True
                text.append(name + _default(parameter))
                passed.append(f"{name}={name}")
            case _:
                text.append(name + _default(parameter))
                passed.append(name)
    checks = []
    for constant in call.constants:
        if constant.value is None:
            checks.append(f"if {constant.expression} is not None:")
        elif _literal_default(constant.value) is not None:
            checks.append(f"if {constant.expression} != {_literal_default(constant.value)}:")
        else:
            continue
        checks.append(
            f"    raise ValueError({quoted(f'{constant.expression} is fixed to {constant.value!r} in this program')})"
        )
    names = tuple((leaf.name, leaf.expression) for leaf in call.leaves)
    return Signature(", ".join(text), ", ".join(passed), tuple(checks), names)


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return ""
    return f"={_literal_default(parameter.default) or 'None'}"


def _literal_default(value: Any) -> str | None:
    if isinstance(value, str):
        return quoted(value)
    if type(value) is float and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value) if value is None or type(value) in (bool, int, float) else None


def example_text(tensor: torch.Tensor, batch_axis: int | None) -> str:
    """`Example("int64", (12,), low=0, high=499)`: one item of the example as the program's synthetic data has it."""
    shape = tuple(size for axis, size in enumerate(tensor.shape) if axis != batch_axis)
    options = [] if batch_axis == 0 else [f"batch_axis={batch_axis}"]
    dtype = str(tensor.dtype).removeprefix("torch.")
    if not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool) and tensor.numel():
        options += [f"low={int(tensor.min())}", f"high={int(tensor.max())}"]
    return f"Example({', '.join([quoted(dtype), repr(shape), *options])})"


def targets_text(targets: Any) -> str:
    """The example targets as a literal of Examples in the same containers."""
    match targets:
        case torch.Tensor():
            return example_text(targets, 0 if targets.dim() else None)
        case dict():
            return "{" + ", ".join(f"{_key(key)}: {targets_text(value)}" for key, value in targets.items()) + "}"
        case tuple():
            items = ", ".join(map(targets_text, targets))
            return f"({items}{',' if len(targets) == 1 else ''})"
        case list():
            return f"[{', '.join(map(targets_text, targets))}]"
        case None:
            return "None"
    raise EmitError(
        "example_targets()", f"a {type(targets).__name__} can't be a target", "return tensors in tuples, lists or dicts"
    )


def _key(key: Any) -> str:
    return quoted(key) if isinstance(key, str) else repr(key)


def used_hooks(source: Source) -> tuple[str, ...]:
    """Names of the user's functions that the program calls."""
    return tuple(field.name for field in fields(source.hooks) if getattr(source.hooks, field.name) is not None)
