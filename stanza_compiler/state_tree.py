"""Which stage holds which part of the module tree, and how code reaches it."""

import keyword
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from stanza_compiler.constructors import is_leaf
from stanza_compiler.fixed_state import has_extra_state
from stanza_compiler.passes.split import Stages
from stanza_compiler.plan import Role
from stanza_compiler.shared_state import SharedNames, parted, shared_names
from stanza_compiler.text import paths_to, quoted

_OUR_METHODS = re.compile(r"run|segment_\d+")  # of the generated classes


@dataclass(frozen=True, slots=True)
class StateTree:
    """The model's module tree, each leaf and each bare tensor with the roles that hold it.

    `leaves` and `tensors` are in the model's own order; of a leaf that one role calls, the other may hold a tensor
    bare. `styles` says how a container's children are reached: by `index` (a Sequential or ModuleList that one stage
    holds whole), by `key`, by `attribute` or by `name` (get_submodule, for names that are no identifiers). `aliases`
    are further paths of a module, `ties` further names of a tensor, except of `shared`, the parameters that both roles
    hold. `extra` are the modules whose state_dict has an extra state, `opaque` the leaves that are built by the user's
    own code.
    """

    root: nn.Module
    leaves: dict[str, frozenset[Role]]
    tensors: dict[str, frozenset[Role]]
    styles: dict[str, str]
    aliases: dict[str, str] = field(default_factory=dict)
    ties: dict[str, str] = field(default_factory=dict)
    shared: tuple[SharedNames, ...] = ()
    extra: dict[str, frozenset[Role]] = field(default_factory=dict)
    opaque: frozenset[str] = frozenset()

    def access(self, path: str) -> str:
        """The expression, in a method of a stage, that reaches a module, parameter or buffer."""
        *parents, last = path.split(".")
        parent = ".".join(parents)
        if path in self.leaves or path in self.aliases or path in self.styles:
            return self.module_access(path)
        base = self.module_access(parent)
        if is_attribute(last):
            return f"{base}.{last}"
        kind = "parameter" if last in self.root.get_submodule(parent)._parameters else "buffer"
        return f"{base}{_reached(kind, last)}"

    def module_access(self, path: str) -> str:
        """The expression that reaches a module."""
        text, walked = "self", ""
        for part in path.split(".") if path else ():
            style = self.styles.get(walked, "attribute")
            if style == "index":
                text += f"[{int(part)}]"
            elif style == "key":
                text += f"[{quoted(part)}]"
            elif is_attribute(part):
                text += f".{part}"
            else:
                text += _reached("submodule", part)
            walked = f"{walked}.{part}" if walked else part
        return text

    def is_leaf(self, path: str, role: Role) -> bool:
        """Whether `role` holds the module as a layer of its own class."""
        return role in self.leaves.get(path, ())

    def names_of(self, role: Role) -> list[str]:
        """Paths of the leaves and bare tensors that `role` holds, in the model's order."""
        return [path for path, roles in (*self.leaves.items(), *self.tensors.items()) if role in roles]

    def held_by(self, role: Role) -> list[str]:
        """What names_of gives, and the modules with extra state."""
        return [*self.names_of(role), *(path for path, roles in self.extra.items() if role in roles and path)]

    def further_names(self, role: Role) -> dict[str, str]:
        """The aliases and ties of what `role` holds."""
        own = set(self.names_of(role))
        around = {path for name in self.held_by(role) for path in paths_to(name)}
        aliases = {
            name: target
            for name, target in self.aliases.items()
            if target in around or not own.isdisjoint(paths_to(target))
        }
        ties = {name: target for name, target in self.ties.items() if not own.isdisjoint(paths_to(target))}
        shared = {name: names[0] for item in self.shared if (names := item.held.get(role)) for name in names[1:]}
        return aliases | ties | shared


def is_attribute(name: str) -> bool:
    """Whether `self.name`, written in a generated class, reaches a child of that name.

    Python spells identifiers in normal form NFKC, renames __x within a class, and finds methods first.
    """
    return (
        name.isidentifier()
        and not keyword.iskeyword(name)
        and not hasattr(nn.Module, name)
        and not _OUR_METHODS.fullmatch(name)
        and unicodedata.normalize("NFKC", name) == name
        and not (name.startswith("__") and not name.endswith("__"))
    )


def _reached(kind: str, name: str) -> str:
    """How a `submodule`, `parameter` or `buffer` is reached whose name is no attribute."""
    if _OUR_METHODS.fullmatch(name):  # torch's getters would find the method
        return f"._{kind.removeprefix('sub')}s[{quoted(name)}]"
    return f".get_{kind}({quoted(name)})"


def state_tree(root: nn.Module, stages: Stages, opaque: frozenset[str] = frozenset()) -> StateTree:
    """Give every module and bare tensor to the stages that use it; what nobody uses goes where its neighbour is."""
    used = _used(root, stages)
    first = stages.segments[0].role
    walk = _Walk(root, used, first)
    walk.visit("", root)
    walk.settle_extra()
    shared = shared_names(walk.shared)
    return StateTree(
        root=root,
        leaves=walk.leaves,
        tensors=walk.tensors,
        styles=_styles(root, walk, shared),
        aliases=walk.aliases,
        ties=walk.ties,
        shared=shared,
        extra=walk.extra,
        opaque=opaque,
    )


def _used(root: nn.Module, stages: Stages) -> dict[str, set[Role]]:
    """Roles by module path or tensor name that their graphs mention, a module by the first of its paths."""
    paths = {id(module): path for path, module in root.named_modules()}
    used: dict[str, set[Role]] = {}
    for segment in stages.segments:
        for node in segment.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                used.setdefault(_first_path(root, str(node.target), paths), set()).add(segment.role)
    return used


def _first_path(root: nn.Module, name: str, paths: dict[int, str]) -> str:
    parent, _, last = name.rpartition(".")
    owner = root.get_submodule(parent)
    if last in owner._modules:
        return paths[id(owner._modules[last])]
    return f"{paths[id(owner)]}.{last}".removeprefix(".")


class _Walk:
    """One pass over the module tree in registration order."""

    def __init__(self, root: nn.Module, used: dict[str, set[Role]], first: Role) -> None:
        self.used = used
        self.neighbour: frozenset[Role] = frozenset({first})
        self.leaves: dict[str, frozenset[Role]] = {}
        self.tensors: dict[str, frozenset[Role]] = {}
        self.aliases: dict[str, str] = {}
        self.ties: dict[str, str] = {}
        self.extra: dict[str, frozenset[Role]] = {}
        self.modules: dict[int, str] = {}
        self.seen: dict[int, str] = {}
        self.roles_of_tensor: dict[int, set[Role]] = {}
        for path, roles in used.items():
            for tensor in _tensors_at(root, path):
                self.roles_of_tensor.setdefault(id(tensor), set()).update(roles)
        self.shared = parted(root, self.roles_of_tensor)

    def visit(self, path: str, module: nn.Module) -> None:
        if id(module) in self.modules:
            self.aliases[path] = self.modules[id(module)]
            return
        self.modules[id(module)] = path
        if path and (path in self.used or (is_leaf(module) and not self._is_shared_out(module))):
            self._take_leaf(path, module)
            return
        if has_extra_state(module):
            self.extra[path] = self.neighbour
        bare: list[tuple[str, torch.Tensor | None]] = [*module._parameters.items(), *module._buffers.items()]
        bare += _plain_tensors(path, module, self.used)
        for name, tensor in bare:  # an absent bias is None
            full = f"{path}.{name}" if path else name
            if tensor is None:
                continue
            if id(tensor) in self.shared:
                roles = frozenset(self.used.get(full, ()))
                self.shared[id(tensor)][full] = roles
                self.tensors |= {full: roles} if roles else {}
            elif id(tensor) in self.seen:
                self.ties[full] = self.seen[id(tensor)]
            else:
                self.seen[id(tensor)] = full
                self.tensors[full] = self._roles(full, [tensor])
        for name, child in module._modules.items():
            if child is not None:
                self.visit(f"{path}.{name}" if path else name, child)

    def settle_extra(self) -> None:
        """Give a module with extra state to whoever holds something in it; else its neighbour keeps it."""
        inside = _inside(self.leaves | self.tensors)
        for path in self.extra:
            self.extra[path] = frozenset(inside.get(path, ())) or self.extra[path]

    def _take_leaf(self, path: str, module: nn.Module) -> None:
        """A layer is held by the roles that call it; a role that only reads a tensor of it holds that tensor."""
        callers = frozenset(self.used.get(path, ()))
        roles = callers or self._roles(path, [*module.parameters(), *module.buffers()])
        self.leaves[path] = self._remembered(roles)
        for name, held in _named_tensors(path, module):
            readers = frozenset(self.used.get(name, ())) - roles
            self.tensors |= {name: readers} if readers else {}
            if id(held) in self.shared:
                self.shared[id(held)][name] = roles | readers
                continue
            if id(held) in self.seen:
                self.ties[name] = self.seen[id(held)]
            self.seen.setdefault(id(held), name)

    def _is_shared_out(self, module: nn.Module) -> bool:
        """Whether both sides of the cut read tensors of a layer that nobody calls."""
        held = [*module.parameters(), *module.buffers()]
        return len(set().union(*(self.roles_of_tensor.get(id(tensor), ()) for tensor in held))) > 1

    def _roles(self, path: str, tensors: list[torch.Tensor]) -> frozenset[Role]:
        """Who uses it, or a tensor in it; else whoever holds what stands before it."""
        roles = set(self.used.get(path, ()))
        for tensor in tensors:
            roles |= self.roles_of_tensor.get(id(tensor), set())
        return self._remembered(frozenset(roles)) or self.neighbour

    def _remembered(self, roles: frozenset[Role]) -> frozenset[Role]:
        """The same roles; a single one holds what nobody uses behind it."""
        self.neighbour = roles if len(roles) == 1 else self.neighbour
        return roles


def _plain_tensors(path: str, module: nn.Module, used: dict[str, set[Role]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors kept as ordinary attributes that a graph reads."""
    for name, value in vars(module).items():
        if isinstance(value, torch.Tensor) and (f"{path}.{name}" if path else name) in used:
            yield name, value


def _named_tensors(path: str, module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(prefix=path, remove_duplicate=False)
    yield from module.named_buffers(prefix=path, remove_duplicate=False)


def _tensors_at(root: nn.Module, path: str) -> Iterable[torch.Tensor]:
    *parents, last = path.split(".")
    thing = getattr(root.get_submodule(".".join(parents)), last)
    if isinstance(thing, nn.Module):
        return [*thing.parameters(), *thing.buffers()]
    return [thing] if isinstance(thing, torch.Tensor) else []


def _styles(root: nn.Module, walk: _Walk, shared: tuple[SharedNames, ...]) -> dict[str, str]:
    styles: dict[str, str] = {}
    held = walk.leaves | walk.tensors | walk.extra
    inside = _inside(held)
    around_tensors = {path for name in walk.tensors for path in paths_to(name)}
    for role, name in ((role, name) for item in shared for role, names in item.held.items() for name in names):
        for path in paths_to(name):
            inside.setdefault(path, set()).add(role)
    for name, target in (*walk.aliases.items(), *walk.ties.items()):
        around = (held.get(path, frozenset()) for path in paths_to(target))
        roles = frozenset(inside.get(target, ())).union(*around)
        for path in paths_to(name):
            inside.setdefault(path, set()).update(roles)
    for path, module in root.named_modules():
        if (path in walk.leaves and path not in around_tensors) or (path and path not in inside):
            continue
        in_layer = any(above in walk.leaves for above in paths_to(path))  # who calls it has it in its own class
        prefix = f"{path}." if path else ""
        children = [
            name for name, child in module._modules.items() if child is not None and f"{prefix}{name}" in inside
        ]
        tensors = [*module._parameters, *module._buffers]
        like_methods = any(hasattr(nn.ModuleDict, name) for name in (*children, *tensors))
        is_list = isinstance(module, nn.Sequential | nn.ModuleList) and not tensors and path not in walk.extra
        in_order = children == [str(index) for index in range(len(module._modules))]
        aliased = any(f"{prefix}{name}" in walk.aliases for name in children)
        if path and children and is_list and in_order and not aliased and len(inside[path]) == 1 and not in_layer:
            styles[path] = "index"
        elif all(map(is_attribute, children)):
            styles[path] = "attribute"
        elif path and path not in walk.extra and not like_methods and not in_layer:
            styles[path] = "key"
        else:
            styles[path] = "name"
    return styles


def _inside(held: dict[str, frozenset[Role]]) -> dict[str, set[Role]]:
    """By path, the roles of whatever is held at or below it."""
    inside: dict[str, set[Role]] = {}
    for name, roles in held.items():
        for path in paths_to(name):
            inside.setdefault(path, set()).update(roles)
    return inside
