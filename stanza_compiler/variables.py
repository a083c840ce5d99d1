"""Which values of a graph are written inline, and what the others are called."""

import builtins
import keyword
from collections.abc import Iterable, Sequence

from torch import fx

_RESERVED = frozenset(
    {
        "self", "torch", "nn", "F", "operator", "math", "user_model", "Record",
        *keyword.kwlist, *keyword.softkwlist, *dir(builtins),
    }
)  # fmt: skip


def inlined_sizes(nodes: Sequence[fx.Node], is_size: frozenset[str]) -> set[fx.Node]:
    """Sizes that only the next call uses: written where they are used."""
    calls = [node for node in nodes if node.op not in ("placeholder", "get_attr")]
    following = {node: index for index, node in enumerate(calls)}
    inlined: set[fx.Node] = set()
    for index in range(len(calls) - 1, -1, -1):
        node = calls[index]
        if node.meta.get("op") not in is_size or len(node.users) != 1:
            continue
        user = next(iter(node.users))
        between = calls[index + 1 : following[user]]
        if user.op != "output" and all(other in inlined for other in between):
            inlined.add(node)
    return inlined


def variable_names(
    nodes: Sequence[fx.Node], inlined: set[fx.Node], is_size: frozenset[str], taken: Iterable[str]
) -> dict[fx.Node, str]:
    """A legal name for every value that is a variable; a value takes over the name of the one that dies in making it.

    `taken` are names that mean something else already.
    """
    last_use: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        if node not in inlined:
            last_use |= dict.fromkeys(_arguments(node, inlined), node)
    heads: dict[fx.Node, fx.Node] = {}
    chains: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        if node.op in ("get_attr", "output") or node in inlined:
            continue
        dying = [
            argument
            for argument in node.all_input_nodes
            if argument.op != "get_attr"
            and argument not in inlined
            and last_use[argument] is node
            and not {argument.meta.get("op"), node.meta.get("op")} & is_size
        ]
        heads[node] = heads[dying[0]] if dying and node.op != "placeholder" else node
        chains.setdefault(heads[node], []).append(node)
    names: dict[fx.Node, str] = {}
    used = {*_RESERVED, *taken}
    alone = sum(node.op == "placeholder" for node in nodes) == 1
    for head, chain in chains.items():
        own = "x" if alone else str(head.target)
        name = _unique(own if head.op == "placeholder" else _chain_name(chain), used)
        used.add(name)
        names |= dict.fromkeys(chain, name)
    return names


def _arguments(node: fx.Node, inlined: set[fx.Node]) -> list[fx.Node]:
    """What a statement reads, through what is written inline."""
    found: list[fx.Node] = []
    for argument in node.all_input_nodes:
        found += _arguments(argument, inlined) if argument in inlined else [argument]
    return found


def _chain_name(chain: list[fx.Node]) -> str:
    """The module path that a chain's first calls share, as many of them as share one, else the first call's name."""
    shared: list[str] = []
    for node in chain:
        parts = str(node.target).split(".") if node.op == "call_module" else []
        common = [one for one, other in zip(shared or parts, parts, strict=False) if one == other]
        if not common:
            break
        shared = common
    return "_".join(shared) or chain[0].name


def _unique(wanted: str, taken: set[str]) -> str:
    """A legal identifier close to `wanted` that nobody uses yet."""
    name = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in wanted).strip("_") or "value"
    if name[0].isdigit():
        name = f"value_{name}"
    candidate, count = name, 1
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    return candidate
