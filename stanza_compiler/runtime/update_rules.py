"""How the optimisers of both stages update what both hold."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from .errors import DisagreementError
from .optimizer import Updater

_LISTS = ("params", "param_names")  # of a whole group


def update_rules(updater: Updater | None, copies: Mapping[str, nn.Parameter]) -> dict[str, str]:
    """The optimiser's class, and the options of a parameter's group, for each of `copies` by name."""
    optimizer: Any = updater.optimizer if updater is not None else None
    rules = dict.fromkeys(copies, "nothing")
    for group in getattr(optimizer, "param_groups", ()):
        members = set(map(id, group["params"]))
        options = ", ".join(f"{key}={value}" for key, value in sorted(group.items()) if key not in _LISTS)
        rules |= {
            name: f"{type(optimizer).__name__}({options})"
            for name, parameter in copies.items()
            if id(parameter) in members
        }
    return rules


def one_rule(*sides: Mapping[str, str]) -> dict[str, str]:
    """The rules of this rank's roles as facts that all ranks must have alike: else copies would drift apart.

    Raises DisagreementError when its two roles have different ones.
    """
    facts: dict[str, str] = {}
    for rules in sides:
        for name, rule in rules.items():
            fact = f"as the optimiser of {name}, which both stages hold,"
            if facts.setdefault(fact, rule) != rule:
                raise DisagreementError(f"CONV has {fact} {facts[fact]}, FC has {rule}")
    return facts
