"""Parameters that both stages hold, and the names under which each of them does."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from stanza_compiler.plan import Role
from stanza_compiler.runtime.program import OWNER


@dataclass(frozen=True, slots=True)
class SharedNames:
    """One parameter: all its `names` in the model's order, and those that each role holds, the one it builds first."""

    names: tuple[str, ...]
    held: Mapping[Role, tuple[str, ...]]


def parted(root: nn.Module, roles_of_tensor: Mapping[int, set[Role]]) -> dict[int, dict[str, frozenset[Role]]]:
    """An empty dict for the id of each parameter that several roles use, to be filled with names and their holders."""
    return {id(parameter): {} for parameter in root.parameters() if len(roles_of_tensor.get(id(parameter), ())) > 1}


def shared_names(found: Mapping[int, Mapping[str, frozenset[Role]]]) -> tuple[SharedNames, ...]:
    """The shared parameters, from the holders of each name; a name that nobody holds is left to the owner."""
    shared = []
    for holders in found.values():
        roles = dict.fromkeys(role for own in holders.values() for role in sorted(own))
        held = {role: tuple(name for name, own in holders.items() if role in own) for role in roles}
        held[OWNER] += tuple(name for name, own in holders.items() if not own)
        shared.append(SharedNames(tuple(holders), held))
    return tuple(shared)
