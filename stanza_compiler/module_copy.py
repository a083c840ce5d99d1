"""Deep copies of module trees."""

import copy
from collections import OrderedDict
from typing import Any

from torch import nn

# What every module holds of its own accord, hooks above all: ten containers, nearly always empty.
_CONTAINERS = tuple(name for name, value in vars(nn.Module()).items() if isinstance(value, dict | set))


def copied(root: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A deep copy of `root`, with what `memo` gives by identity in place of copies.

    Empty containers of modules are made anew here: deepcopy would spend most of its time on them.
    """
    for module in root.modules():
        for name in _CONTAINERS:
            held = vars(module).get(name)
            if not held and (kind := type(held)) in (dict, OrderedDict, set):
                memo.setdefault(id(held), kind())
    return copy.deepcopy(root, memo)
