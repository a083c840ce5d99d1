"""Which stage holds which part of the module tree, and how code reaches it."""

import keyword
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from stanza_compiler.constructors import constructor, is_leaf, quoted
from stanza_compiler.errors import EmitError
from stanza_compiler.passes.split import Stages
from stanza_compiler.plan import Role

LINE_LENGTH = 110


@dataclass(frozen=True, slots=True)
class StateTree:
    """The model's module tree, each leaf and each bare tensor with the roles that hold it.

    `leaves` and `tensors` are in the model's own order. `styles` says how a container's children are reached:
    by `index` (a Sequential or ModuleList that one stage holds whole), by `key`, by `attribute` or by `name`
    (get_submodule, for names that are no identifiers). `aliases` are further paths of a module, `ties`
    further names of a tensor.
    """

    root: nn.Module
    leaves: dict[str, frozenset[Role]]
    tensors: dict[str, frozenset[Role]]
    styles: dict[str, str]
    aliases: dict[str, str] = field(default_factory=dict)
    ties: dict[str, str] = field(default_factory=dict)

    def access(self, path: str) -> str:
        """The expression, in a method of a stage, that reaches a module, parameter or buffer."""
        *parents, last = path.split(".")
        parent = ".".join(parents)
        if path in self.leaves or path in self.aliases or path in self.styles:
            return self.module_access(path)
        base = self.module_access(parent)
        if _is_attribute(last):
            return f"{base}.{last}"
        getter = "get_parameter" if last in self.root.get_submodule(parent)._parameters else "get_buffer"
        return f"{base}.{getter}({quoted(last)})"

    def module_access(self, path: str) -> str:
        """The expression that reaches a module."""
        text, walked = "self", ""
        for part in path.split(".") if path else ():
            style = self.styles.get(walked, "attribute")
            if style == "index":
                text += f"[{int(part)}]"
            elif style == "key":
                text += f"[{quoted(part)}]"
            elif _is_attribute(part):
                text += f".{part}"
            else:
                text += f".get_submodule({quoted(part)})"
            walked = f"{walked}.{part}" if walked else part
        return text

    def names_of(self, role: Role) -> list[str]:
        """Paths of the leaves and bare tensors that `role` holds, in the model's order."""
        return [path for path, roles in (*self.leaves.items(), *self.tensors.items()) if role in roles]


def _is_attribute(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not hasattr(nn.Module, name)


def state_tree(root: nn.Module, stages: Stages) -> StateTree:
    """Give every module and bare tensor to the stages that use it; what nobody uses goes where its neighbour is."""
    used = _used(root, stages)
    first = stages.segments[0].role
    walk = _Walk(root, used, first)
    walk.visit("", root)
    return StateTree(root, walk.leaves, walk.tensors, _styles(root, walk), walk.aliases, walk.ties)


def _used(root: nn.Module, stages: Stages) -> dict[str, set[Role]]:
    """Roles by module path or tensor name that their graphs mention."""
    used: dict[str, set[Role]] = {}
    for segment in stages.segments:
        for node in segment.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                used.setdefault(str(node.target), set()).add(segment.role)
    return used


class _Walk:
    """One pass over the module tree in registration order."""

    def __init__(self, root: nn.Module, used: dict[str, set[Role]], first: Role) -> None:
        self.used = used
        self.neighbour: frozenset[Role] = frozenset({first})
        self.leaves: dict[str, frozenset[Role]] = {}
        self.tensors: dict[str, frozenset[Role]] = {}
        self.aliases: dict[str, str] = {}
        self.ties: dict[str, str] = {}
        self.modules: dict[int, str] = {}
        self.seen: dict[int, str] = {}
        self.roles_of_tensor: dict[int, set[Role]] = {}
        for path, roles in used.items():
            for tensor in _tensors_at(root, path):
                self.roles_of_tensor.setdefault(id(tensor), set()).update(roles)

    def visit(self, path: str, module: nn.Module) -> None:
        if id(module) in self.modules:
            self.aliases[path] = self.modules[id(module)]
            return
        self.modules[id(module)] = path
        if path and (is_leaf(module) or path in self.used):
            roles = self._roles(path, [*module.parameters(), *module.buffers()])
            self.leaves[path] = roles
            for name, parameter in module.named_parameters(prefix=path):
                if id(parameter) in self.seen:
                    self.ties[name] = self.seen[id(parameter)]
                self.seen.setdefault(id(parameter), name)
            return
        held: list[tuple[str, torch.Tensor | None]] = [*module._parameters.items(), *module._buffers.items()]
        held += _plain_tensors(path, module, self.used)
        for name, tensor in held:  # an absent bias is None
            full = f"{path}.{name}" if path else name
            if tensor is None:
                continue
            if id(tensor) in self.seen:
                self.ties[full] = self.seen[id(tensor)]
            else:
                self.seen[id(tensor)] = full
                self.tensors[full] = self._roles(full, [tensor])
        for name, child in module._modules.items():
            if child is not None:
                self.visit(f"{path}.{name}" if path else name, child)

    def _roles(self, path: str, tensors: list[torch.Tensor]) -> frozenset[Role]:
        """Who uses it, or a tensor in it; else whoever holds what stands before it."""
        roles = set(self.used.get(path, ()))
        for tensor in tensors:
            roles |= self.roles_of_tensor.get(id(tensor), set())
        trained = [tensor for tensor in tensors if isinstance(tensor, nn.Parameter)]
        if len(roles) > 1 and trained:
            raise EmitError(path, "its parameters are used on both sides of the cut", "cut elsewhere with --cut-after")
        if roles:
            self.neighbour = frozenset(roles)
        return frozenset(roles) or self.neighbour


def _plain_tensors(path: str, module: nn.Module, used: dict[str, set[Role]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors kept as ordinary attributes that a graph reads."""
    for name, value in vars(module).items():
        if isinstance(value, torch.Tensor) and (f"{path}.{name}" if path else name) in used:
            yield name, value


def _tensors_at(root: nn.Module, path: str) -> Iterable[torch.Tensor]:
    *parents, last = path.split(".")
    thing = getattr(root.get_submodule(".".join(parents)), last)
    if isinstance(thing, nn.Module):
        return [*thing.parameters(), *thing.buffers()]
    return [thing] if isinstance(thing, torch.Tensor) else []


def _styles(root: nn.Module, walk: _Walk) -> dict[str, str]:
    styles: dict[str, str] = {}
    inside: dict[str, set[Role]] = {}
    for name, roles in (*walk.leaves.items(), *walk.tensors.items()):
        for path in list(_paths_to(name))[:-1]:
            inside.setdefault(path, set()).update(roles)
    # Whatever has anything at or below it that is written into a stage.
    written = {
        path
        for names in (walk.leaves, walk.tensors, walk.aliases, walk.ties)
        for name in names
        for path in _paths_to(name)
    }
    for path, module in root.named_modules():
        if path in walk.leaves or (path and path not in inside):
            continue
        prefix = f"{path}." if path else ""
        children = [
            name for name, child in module._modules.items() if child is not None and f"{prefix}{name}" in written
        ]
        is_list = isinstance(module, nn.Sequential | nn.ModuleList) and not module._parameters and not module._buffers
        in_order = children == [str(index) for index in range(len(module._modules))]
        aliased = any(f"{prefix}{name}" in walk.aliases for name in children)
        if path and children and is_list and in_order and not aliased and len(inside[path]) == 1:
            styles[path] = "index"
        elif all(map(_is_attribute, children)):
            styles[path] = "attribute"
        elif path and not any(hasattr(nn.ModuleDict, name) for name in children):
            styles[path] = "key"
        else:
            styles[path] = "name"
    return styles


def _paths_to(name: str) -> Iterator[str]:
    """The root, the modules on the way to a name, and the name itself.

    >>> list(_paths_to("a.b.c"))
    ['', 'a', 'a.b', 'a.b.c']
    """
    yield ""
    for place, letter in enumerate(name):
        if letter == ".":
            yield name[:place]
    yield name


def state_lines(tree: StateTree, role: Role) -> list[str]:
    """The statements of a stage's __init__ that build what `role` holds, in the model's order."""
    lines = _Builder(tree, role).lines
    held = set(tree.names_of(role))
    around = {path for name in held for path in _paths_to(name)}
    for alias, target in tree.aliases.items():
        if target in around or not held.isdisjoint(_paths_to(target)):
            lines.append(_assignment(tree, alias, tree.module_access(target)))
    for name, target in tree.ties.items():
        if not held.isdisjoint(_paths_to(target)):
            *parents, last = name.split(".")
            owner = _owner(tree, parents)
            lines.append(
                f"{owner}.{last} = {_tensor(tree, target)}"
                if _is_attribute(last)
                else f"{owner}.register_parameter({quoted(last)}, {_tensor(tree, target)})"
            )
    return lines


def _owner(tree: StateTree, parents: list[str]) -> str:
    return tree.module_access(".".join(parents))


def _tensor(tree: StateTree, name: str) -> str:
    *parents, last = name.split(".")
    return (
        f"{_owner(tree, parents)}.{last}"
        if _is_attribute(last)
        else f"{_owner(tree, parents)}.get_parameter({quoted(last)})"
    )


def _assignment(tree: StateTree, path: str, value: str) -> str:
    *parents, last = path.split(".")
    parent = ".".join(parents)
    owner = tree.module_access(parent)
    style = tree.styles.get(parent, "attribute")
    if style == "key":
        return f"{owner}[{quoted(last)}] = {value}"
    if style == "index" or not _is_attribute(last):
        return f"{owner}.add_module({quoted(last)}, {value})"
    return f"{owner}.{last} = {value}"


class _Builder:
    """Writes the module tree of one stage, containers before what they contain."""

    def __init__(self, tree: StateTree, role: Role) -> None:
        self.tree, self.role = tree, role
        self.lines: list[str] = []
        own = set(tree.names_of(role))
        around = {path for name in own for path in _paths_to(name)}
        for name, target in (*tree.aliases.items(), *tree.ties.items()):
            if target in around or not own.isdisjoint(_paths_to(target)):
                around.update(_paths_to(name))
        self.written = around
        self.bare: dict[str, list[str]] = {}
        for full, roles in tree.tensors.items():
            if role in roles:
                self.bare.setdefault(full.rpartition(".")[0], []).append(full)
        self._fill("", tree.root)

    def _fill(self, path: str, module: nn.Module) -> None:
        """The children of a container that stands already."""
        self._tensors(path, module)
        inline = self.tree.styles.get(path) in ("index", "key")
        for name, child in module._modules.items():
            below = f"{path}.{name}" if path else name
            if child is None or below in self.tree.aliases or below not in self.written:
                continue
            if not inline:
                self.lines += _laid_out(_assignment(self.tree, below, "{}"), *self._expression(below, child))
            if below not in self.tree.leaves:
                self._fill(below, child)

    def _expression(self, path: str, module: nn.Module) -> tuple[str, list[str], str]:
        """(opening, items, closing) of the code that makes a module, its inline children included."""
        if path in self.tree.leaves:
            return self._leaf(path, module), [], ""
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
        parameters = list(module.parameters())
        frozen = bool(parameters) and not any(parameter.requires_grad for parameter in parameters)
        return constructor(module, path) + (".requires_grad_(False)" if frozen else "")

    def _tensors(self, path: str, module: nn.Module) -> None:
        for full in self.bare.get(path, ()):
            name = full.rpartition(".")[2]
            owner = self.tree.module_access(path)
            tensor = module._parameters.get(name)
            if tensor is not None:
                frozen = "" if tensor.requires_grad else ", requires_grad=False"
                value = f"nn.Parameter({_empty(tensor)}{frozen})"
                self.lines.append(
                    f"{owner}.{name} = {value}"
                    if _is_attribute(name)
                    else f"{owner}.register_parameter({quoted(name)}, {value})"
                )
                continue
            buffer = module._buffers.get(name)
            is_plain = buffer is None
            value = _empty(vars(module)[name] if buffer is None else buffer)
            persistent = "" if not is_plain and name not in module._non_persistent_buffers_set else ", persistent=False"
            self.lines.append(f"{owner}.register_buffer({quoted(name)}, {value}{persistent})")


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
