"""From stages to a folder of source files that trains."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import jinja2
import torch
from torch import nn

from stanza_compiler import codegen, extra_state, runtime
from stanza_compiler.errors import EmitError
from stanza_compiler.fixed_state import fixed_states
from stanza_compiler.loader import USER_MODULE, Source
from stanza_compiler.local_files import files_of, local_files, third_party
from stanza_compiler.opgraph import OpGraph
from stanza_compiler.passes.split import Stages
from stanza_compiler.plan import Plan, Role
from stanza_compiler.sources import node_source
from stanza_compiler.state_lines import mode_lines, shared_lines
from stanza_compiler.state_tree import StateTree, state_tree
from stanza_compiler.text import in_docstring, quoted
from stanza_compiler.traced import Trace, attribute

ROLE_TEXTS: dict[Role, str] = {"conv": "compute-heavy stage", "fc": "parameter-heavy stage", "model": "model"}


def emit(source: Source, traced: Trace, graph: OpGraph, stages: Stages, plan: Plan, folder: Path) -> tuple[str, ...]:
    """Write the program into `folder`, everything but plan.json and the report; give the packages it requires.

    Raises EmitError, with the op or module, for what can't be written as source.
    """
    tree = state_tree(traced.root, stages, frozenset(traced.opaque))
    _refuse_lost_tensors(stages, tree, source)
    states = fixed_states(source.module, source.call)
    modes = mode_lines(tree)
    roles = list(dict.fromkeys(segment.role for segment in stages.segments))
    files = [codegen.stage_file(role, stages, tree, graph, source) for role in roles]
    environment = _environment()
    for file in files:
        stage = plan.stage(file.role)
        summary = f"{stage.ops} ops, {stage.parameters:,} parameters, {stage.forward_flops:,} forward FLOPs a sample"
        text = environment.get_template("stage.py.j2").render(
            stage=file,
            role_text=ROLE_TEXTS[file.role],
            model_name=source.basename,
            summary=summary,
            base=_base(tree),
            modes=[line for path, line in modes.items() if file.role in tree.leaves[path]],
            has_extra_state=any(file.role in holders for holders in tree.extra.values()),
        )
        _write(folder / f"{file.module_name}.py", text)
    _write(folder / "whole_model.py", _whole_model(environment, source, tree, stages, files, modes))
    _write(folder / "train.py", _train(environment, source, tree, stages, files))
    _write_weights(folder / "weights", tree, files)
    if states:
        shutil.copyfile(extra_state.__file__, folder / "extra_state.py")
        torch.save(states, folder / "weights" / "extra_state.pt")
    _copy_runtime(folder / "runtime")
    modules = [line.split()[1] for file in files for line in file.imports if line]
    own = _write_user_files(folder, source, modules)
    return _requires([module.partition(".")[0] for module in modules], own, source)


def _refuse_lost_tensors(stages: Stages, tree: StateTree, source: Source) -> None:
    """Raise EmitError for a tensor that the trace took for a constant although gradients go through it."""
    for segment in stages.segments:
        for node in segment.graph.nodes:
            value = attribute(tree.root, node.target) if node.op == "get_attr" else None
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                what = "a tensor was computed from parameters where the trace does not see it"
                raise EmitError(node_source(node, source.root) or source.place, what, "read parameters as attributes")


def readme(plan: Plan, files: set[str]) -> str:
    """The README.md of a program that holds `files` by name."""
    stages = [
        {
            "module_name": codegen.FILE_NAMES[stage.role],
            "class_name": codegen.CLASS_NAMES[stage.role],
            "about": f"the {ROLE_TEXTS[stage.role]}: {stage.ops} ops, {stage.parameters:,} parameters",
        }
        for stage in plan.stages
    ]
    template = _environment().get_template("README.md.j2")
    return template.render(model_name=plan.source, plan=plan, stages=stages, files=files)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("stanza_compiler.templates", ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["in_docstring"] = in_docstring
    return environment


def _write(path: Path, text: str) -> None:
    path.write_text("\n".join(line.rstrip() for line in text.split("\n")), encoding="utf-8")


def _base(tree: StateTree) -> str:
    """What the generated classes that stand for the model itself are."""
    return "ExtraState" if "" in tree.extra else "nn.Module"


def _whole_model(
    environment: jinja2.Environment,
    source: Source,
    tree: StateTree,
    stages: Stages,
    files: list[codegen.StageFile],
    modes: dict[str, str],
) -> str:
    for name in ("self", "bind_inputs"):
        if name in source.call.signature.parameters:
            raise EmitError(source.place, f"forward() has an argument {name}, which the program needs", "rename it")
    return environment.get_template("whole_model.py.j2").render(
        model_name=source.basename,
        stages=[
            {"module_name": f.module_name, "class_name": f.class_name, "weights": quoted(f"{f.module_name}.pt")}
            for f in files
        ],
        signature=_quoted_names(codegen.call_signature(source.call)),
        calls=list(_calls(stages, files)),
        order=[quoted(name) for name in _order(tree, files)],
        shares=bool(tree.shared),
        ties=shared_lines(tree),
        base=_base(tree),
        modes=list(modes.values()),
        version=repr(tree.root._version),
    )


def _quoted_names(signature: codegen.Signature) -> dict[str, object]:
    return {
        "parameters": signature.parameters,
        "arguments": signature.arguments,
        "checks": signature.checks,
        "names": [(quoted(name), expression) for name, expression in signature.names],
    }


def _calls(stages: Stages, files: list[codegen.StageFile]) -> Iterator[str]:
    """One line per segment: it takes its values by name and gives its own, the last one returns."""
    by_role = {file.role: file for file in files}
    for index, segment in enumerate(stages.segments):
        file = by_role[segment.role]
        method = file.methods[stages.of(segment.role).index(segment)]
        values = "".join(f", values[{quoted(name)}]" for name in segment.takes)
        call = f"{file.class_name}.{method.name}(self{values})"
        if index == len(stages.segments) - 1:
            yield f"return {call}"
        else:
            yield (
                f"{', '.join(f'values[{quoted(name)}]' for name in segment.gives)} = {call}" if segment.gives else call
            )


def _order(tree: StateTree, files: list[codegen.StageFile]) -> list[str]:
    """Names in the original order, where adopting one stage after the other would give another; else nothing."""
    root = tree.root
    original = [name for name, _ in root.named_modules(remove_duplicate=False) if name]
    original += [name for name, _ in root.named_parameters(remove_duplicate=False)]
    original += [name for name, _ in root.named_buffers(remove_duplicate=False)]
    original += [name for name in tree.tensors if name not in set(original)]  # plain attributes
    adopted: dict[str, None] = {}
    for file in files:
        further = tree.further_names(file.role)
        built = {part for name in tree.held_by(file.role) for part in _with_parents(name)}
        built |= {part for name in further for part in _with_parents(name)} - set(further)
        adopted |= dict.fromkeys([*filter(built.__contains__, original), *further])
    leaves = tree.leaves.keys()
    outside = {name for name in adopted if leaves.isdisjoint(set(_with_parents(name)) - {name})}
    order = [name for name in original if name in outside]
    number = {name: index for index, name in enumerate(order)}
    siblings: dict[tuple[str, bool], list[int]] = {}
    for name in filter(outside.__contains__, adopted):
        parent, _, last = name.rpartition(".")
        siblings.setdefault((parent, last in root.get_submodule(parent)._modules), []).append(number[name])
    return order if any(numbers != sorted(numbers) for numbers in siblings.values()) else []


def _with_parents(path: str) -> Iterator[str]:
    parts = path.split(".")
    return (".".join(parts[: depth + 1]) for depth in range(len(parts)))


def _train(
    environment: jinja2.Environment, source: Source, tree: StateTree, stages: Stages, files: list[codegen.StageFile]
) -> str:
    by_role = {file.role: file for file in files}
    segments = []
    for segment in stages.segments:
        method = by_role[segment.role].methods[stages.of(segment.role).index(segment)]
        segments.append(
            {
                "role": quoted(segment.role),
                "method": quoted(method.name),
                "takes": _names(segment.takes),
                "gives": _names(segment.gives),
            }
        )
    hooks = codegen.used_hooks(source)
    targets = codegen.targets_text(source.targets) if "loss_fn" in hooks else None
    return environment.get_template("train.py.j2").render(
        model_name=source.basename,
        uses_user_model=bool(hooks),
        stages=[{"role": quoted(f.role), "module": f.module_name, "class_name": f.class_name} for f in files],
        segments=segments,
        shared=[
            {"name": quoted(item.names[0]), "conv": quoted(item.held["conv"][0]), "fc": quoted(item.held["fc"][0])}
            for item in tree.shared
        ],
        hooks=hooks,
        example_inputs=[
            (quoted(leaf.name), codegen.example_text(leaf.example, leaf.batch_axis)) for leaf in source.call.leaves
        ],
        example_targets=None if targets == "None" else targets,
    )


def _names(names: tuple[str, ...]) -> str:
    items = ", ".join(map(quoted, names))
    return f"({items}{',' if len(names) == 1 else ''})"


def _write_weights(folder: Path, tree: StateTree, files: list[codegen.StageFile]) -> None:
    """One file per stage: name to tensor, its state_dict and its further buffers and constants."""
    folder.mkdir()
    for file in files:
        tensors: dict[str, torch.Tensor] = {}
        for path in tree.names_of(file.role):
            tensors |= {name: tensor.detach().contiguous() for name, tensor in _tensors_at(tree.root, path)}
        torch.save(tensors, folder / f"{file.module_name}.pt")


def _tensors_at(root: nn.Module, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    *parents, last = path.split(".")
    thing = getattr(root.get_submodule(".".join(parents)), last)
    if isinstance(thing, torch.Tensor):
        yield path, thing
    else:
        yield from thing.named_parameters(prefix=path)
        yield from thing.named_buffers(prefix=path)


def _copy_runtime(folder: Path) -> None:
    folder.mkdir()
    for path in sorted(Path(runtime.__file__).parent.glob("*.py")):
        shutil.copyfile(path, folder / path.name)


def _write_user_files(folder: Path, source: Source, modules: list[str]) -> dict[str, Path]:
    """Copy the user's files that the program uses a name of, and the local modules that they import.

    `modules` are those that the generated files import.
    """
    hooks = codegen.used_hooks(source)
    is_file = source.origin == USER_MODULE
    is_local = source.file.is_relative_to(source.root) and "site-packages" not in source.file.parts
    taken = {"runtime", "user_model", *(path.stem for path in folder.glob("*.py"))}
    used = {module for module in modules if module.partition(".")[0] not in taken}
    starts = [file for module in sorted(used) for file in files_of(module, source.root)]
    own = USER_MODULE if is_file else source.origin.partition(".")[0]
    if hooks or own in {module.partition(".")[0] for module in modules}:
        starts.append(source.file)
    if not starts:
        return {}
    files = local_files(starts, source.root) if is_local else {}
    for name, path in files.items():
        is_source = is_file and path == source.file
        if not is_source and name.partition("/")[0].removesuffix(".py") in taken:
            what = f"{source.basename} imports it, but the program has a file of that name"
            raise EmitError(name, what, "rename it")
        target = folder / ("user_model.py" if is_source else name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    if not is_file and hooks:
        lines = [
            f'"""What the program uses of {source.origin}."""',
            "",
            f"from {source.origin} import {', '.join(sorted(hooks))}",
        ]
        lines += ["", f"__all__ = {sorted(hooks)!r}", ""]
        _write(folder / "user_model.py", "\n".join(lines))
    return files


def _requires(imports: list[str], own: dict[str, Path], source: Source) -> tuple[str, ...]:
    known = {"torch", "operator", "math", USER_MODULE, *(name.partition("/")[0].removesuffix(".py") for name in own)}
    outside = {name for name in imports if name not in known} | set(third_party(own, source.root))
    if source.origin != USER_MODULE and not own and codegen.used_hooks(source):
        outside.add(source.origin.partition(".")[0])
    return ("torch", *sorted(outside - {"torch"}))
