"""The statements that build a stage's part of the module tree."""

import copy
from collections.abc import Iterable

import torch
from torch import nn

from stanza_compiler.constructors import constructor
from stanza_compiler.plan import Role
from stanza_compiler.state_tree import StateTree, is_attribute
from stanza_compiler.text import paths_to, quoted

LINE_LENGTH = 110


def state_lines(tree: StateTree, role: Role) -> list[str]:
    """The statements of a stage's __init__ that build what `role` holds, in the model's order."""
    builder = _Builder(tree, role)
    lines = builder.lines
    for name, target in tree.further_names(role).items():
        if name in tree.aliases:
            lines.append(_assignment(tree, name, tree.module_access(target)))
        else:
            lines.append(_registration(tree, name, tree.access(target)))
    for version, paths in builder.versions.items():  # load_state_dict() shows it to modules that can read older states
        lines += ["for name in [", *_packed(map(quoted, paths)), "]:"]
        lines += [f"    self.get_submodule(name)._version = {version!r}"]
    return lines


def shared_lines(tree: StateTree) -> list[str]:
    """The statements that make one parameter again of each one that both stages hold, in a model of both."""
    return [_registration(tree, name, tree.access(item.names[0])) for item in tree.shared for name in item.names[1:]]


def _packed(items: Iterable[str]) -> list[str]:
    """As many items a line as fit."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 2 <= LINE_LENGTH:
            lines[-1] += f" {item},"
        else:
            lines.append(f"    {item},")
    return lines


def _registration(tree: StateTree, name: str, value: str) -> str:
    """The statement that gives a module the tensor `value` under the last part of `name`, as the model has it."""
    parent, _, last = name.rpartition(".")
    module, owner = tree.root.get_submodule(parent), tree.module_access(parent)
    if last in module._parameters:
        if is_attribute(last):
            return f"{owner}.{last} = {value}"
        return f"{owner}.register_parameter({quoted(last)}, {value})"
    is_persistent = last in module._buffers and last not in module._non_persistent_buffers_set
    persistent = "" if is_persistent else ", persistent=False"
    return f"{owner}.register_buffer({quoted(last)}, {value}{persistent})"


def _assignment(tree: StateTree, path: str, value: str) -> str:
    *parents, last = path.split(".")
    parent = ".".join(parents)
    owner = tree.module_access(parent)
    style = tree.styles.get(parent, "attribute")
    if style == "key":
        return f"{owner}[{quoted(last)}] = {value}"
    if style == "index" or not is_attribute(last):
        return f"{owner}.add_module({quoted(last)}, {value})"
    return f"{owner}.{last} = {value}"


class _Builder:
    """Writes the module tree of one stage, containers before what they contain."""

    def __init__(self, tree: StateTree, role: Role) -> None:
        self.tree, self.role = tree, role
        self.lines: list[str] = []
        self.versions: dict[int, list[str]] = {}
        held = (*tree.held_by(role), *tree.further_names(role))
        self.written = {path for name in held for path in paths_to(name)}
        self.bare: dict[str, list[str]] = {}
        for full, roles in tree.tensors.items():
            if role in roles:
                self.bare.setdefault(full.rpartition(".")[0], []).append(full)
        self._fill("", tree.root)

    def _fill(self, path: str, module: nn.Module) -> None:
        """The children of a container that stands already."""
        if module._version != 1:
            self.versions.setdefault(module._version, []).append(path)
        self._tensors(path, module)
        inline = self.tree.styles.get(path) in ("index", "key")
        for name, child in module._modules.items():
            below = f"{path}.{name}" if path else name
            if child is None or below in self.tree.aliases or below not in self.written:
                continue
            if not inline:
                self.lines += _laid_out(_assignment(self.tree, below, "{}"), *self._expression(below, child))
            if not self.tree.is_leaf(below, self.role):
                self._fill(below, child)

    def _expression(self, path: str, module: nn.Module) -> tuple[str, list[str], str]:
        """(opening, items, closing) of the code that makes a module, its inline children included."""
        if self.tree.is_leaf(path, self.role):
            return self._leaf(path, module), [], ""
        if path in self.tree.extra:
            return f"ExtraState({quoted(path)})", [], ""
        style = self.tree.styles[path]
        children = [
            (name, self._one_line(f"{path}.{name}", child))
            for name, child in module._modules.items()
            if child is not None and f"{path}.{name}" in self.written and f"{path}.{name}" not in self.tree.aliases
        ]
        if style == "index":
            texts = [text for _, text in children]
            if set(texts) == {"nn.Module()"}:
                return f"nn.ModuleList(nn.Module() for _ in range({len(texts)}))", [], ""
            return (
                ("nn.Sequential(", texts, ")")
                if isinstance(module, nn.Sequential)
                else ("nn.ModuleList([", texts, "])")
            )
        if style == "key":
            return "nn.ModuleDict({", [f"{quoted(name)}: {text}" for name, text in children], "})"
        return "nn.Module()", [], ""

    def _one_line(self, path: str, module: nn.Module) -> str:
        opening, items, closing = self._expression(path, module)
        return f"{opening}{', '.join(items)}{closing}"

    def _leaf(self, path: str, module: nn.Module) -> str:
        if path in self.tree.opaque:
            return f"original.get_submodule({quoted(path)})"
        parameters = list(module.parameters())
        frozen = bool(parameters) and not any(parameter.requires_grad for parameter in parameters)
        return constructor(module, path) + (".requires_grad_(False)" if frozen else "")

    def _tensors(self, path: str, module: nn.Module) -> None:
        held = {**vars(module), **module._buffers, **module._parameters}
        for full in self.bare.get(path, ()):
            tensor = held[full.rpartition(".")[2]]
            value = _empty(tensor)
            if isinstance(tensor, nn.Parameter):
                value = f"nn.Parameter({value}{'' if tensor.requires_grad else ', requires_grad=False'})"
            self.lines.append(_registration(self.tree, full, value))


def frozen_lines(tree: StateTree, role: Role) -> list[str]:
    """Statements for leaves of which only some parameters are frozen."""
    lines = []
    for path, roles in tree.leaves.items():
        module = tree.root.get_submodule(path)
        flags = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
        if role in roles and len(set(flags.values())) > 1:
            base = tree.module_access(path)
            lines += [
                f"{base}.get_parameter({quoted(name)}).requires_grad_(False)"
                for name, trains in flags.items()
                if not trains
            ]
    return lines


def mode_lines(tree: StateTree) -> dict[str, str]:
    """By leaf, the statement that follows train() where the model's own train() treats that leaf in its own way."""
    if all(type(module).train is nn.Module.train and "train" not in vars(module) for module in tree.root.modules()):
        return {}
    root = copy.deepcopy(tree.root)  # a train() may do more, such as merging weights
    root.train(True)
    trains = {path: root.get_submodule(path).training for path in tree.leaves}
    root.train(False)
    pairs = {path: (trains[path], root.get_submodule(path).training) for path in tree.leaves}
    calls = {(False, False): "eval()", (True, True): "train()", (False, True): "train(not mode)"}
    return {path: f"{tree.module_access(path)}.{calls[pair]}" for path, pair in pairs.items() if pair in calls}


def _empty(tensor: torch.Tensor) -> str:
    sizes = ", ".join(map(str, tensor.shape)) or "()"
    dtype = "" if tensor.dtype == torch.float32 else f", dtype={tensor.dtype}"
    return f"torch.empty({sizes}{dtype})"


def _laid_out(assignment: str, opening: str, items: list[str], closing: str) -> list[str]:
    """One line where it fits and holds at most one item, else an item a line."""
    head, _, tail = assignment.rpartition("{}")
    one_line = f"{head}{opening}{', '.join(items)}{closing}{tail}"
    if not items or (len(one_line) <= LINE_LENGTH and len(items) == 1):
        return [one_line]
    return [f"{head}{opening}", *(f"    {item}," for item in items), f"{closing}{tail}"]
