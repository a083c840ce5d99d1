"""A copy is as deep as deepcopy's."""

import copy

import torch
from torch import nn

from stanza_compiler.module_copy import copied


def test_a_copy_shares_nothing_but_what_the_memo_gives() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[0].notes = {"seen": []}
    calls: list[str] = []
    model[0].register_forward_hook(lambda *_: calls.append("called"))
    weight = model[0].weight
    twin = copied(model, {id(weight): weight})
    assert twin[0].weight is weight
    assert twin[0].bias is not model[0].bias
    assert torch.equal(twin[0].bias, model[0].bias)
    assert twin[0].notes == {"seen": []}
    assert twin[0].notes["seen"] is not model[0].notes["seen"]
    twin(torch.ones(3, 2))
    assert calls == ["called"]
    assert (int(model[1].num_batches_tracked), int(twin[1].num_batches_tracked)) == (0, 1)


def test_empty_containers_of_modules_are_new_ones_of_the_same_kind() -> None:
    model = nn.Linear(2, 2)
    twin = copied(model, {})
    expected = copy.deepcopy(model)
    for name, held in vars(model).items():
        assert type(vars(twin)[name]) is type(vars(expected)[name])
        if isinstance(held, dict | set):
            assert vars(twin)[name] is not held
    twin.register_forward_hook(lambda *_: None)
    assert not model._forward_hooks
