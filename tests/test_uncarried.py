"""What is refused before anything is traced, because no program would carry it."""

import copy
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from stanza_compiler.errors import LoadError
from stanza_compiler.uncarried import refuse_uncarried, untrained_notes


class Sub(torch.Tensor):
    pass


class OwnParameter(nn.Parameter):
    pass


class Overriding(nn.Linear):
    def state_dict(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        return {f"model.{name}": value for name, value in super().state_dict(*args, **kwargs).items()}


class Saving(nn.Linear):
    def _save_to_state_dict(self, destination, prefix, keep_vars):  # type: ignore[no-untyped-def]
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}more"] = torch.ones(1)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def with_buffer(buffer: Tensor) -> nn.Module:
    module = net()
    module.register_buffer("odd", buffer)
    return module


def changed(change: Callable[[nn.Sequential], object]) -> nn.Module:
    module = net()
    change(module)
    return module


def rename(module: nn.Module, state: dict[str, Tensor], prefix: str, metadata: object) -> None:
    state["other"] = state.pop("0.weight")


def double(module: nn.Module, state: dict[str, Tensor], prefix: str, metadata: object) -> None:
    state["0.weight"] = state["0.weight"] * 2


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (with_buffer(torch.ones(2).as_subclass(Sub)), "odd is a Sub, a subclass of Tensor; make it a plain tensor"),
        (changed(lambda m: setattr(m, "p", OwnParameter(torch.ones(2)))), "p is a OwnParameter, a subclass of Tensor"),
        (with_buffer(torch.eye(2).to_sparse()), "odd is sparse coo; keep it dense"),
        (changed(lambda m: setattr(m, "odd", m[0].weight * 2)), "odd was computed from parameters when the model was"),
        (changed(lambda m: m[0].weight.register_hook(lambda g: g)), "0.weight has a hook on its gradient"),
        (changed(lambda m: m[0].weight.register_post_accumulate_grad_hook(lambda p: None)), "0.weight has a hook on"),
        (changed(lambda m: m[0].register_full_backward_hook(lambda *_: None)), "0 has a backward hook"),
        (changed(lambda m: m.register_full_backward_pre_hook(lambda *_: None)), "the model has a backward hook"),
        (changed(lambda m: nn.utils.spectral_norm(m[0])), "0 computes a parameter by SpectralNorm, a hook of torch"),
        (changed(lambda m: prune.l1_unstructured(m[0], "weight", 0.5)), "0 computes a parameter by L1Unstructured, a"),
        (changed(lambda m: m.register_state_dict_post_hook(rename)), "state_dict() gives something else for"),
        (changed(lambda m: m.register_state_dict_post_hook(double)), "state_dict() gives something else for"),
        (Overriding(2, 2), "state_dict() gives something else for 'weight' than the model holds"),
        (Saving(2, 2), "state_dict() gives something else for 'more' than the model holds"),
        (changed(lambda m: m._modules.update({"a.b": nn.Tanh()})), "the model holds something under the name 'a.b'"),
        (changed(lambda m: m[0]._parameters.update({"": nn.Parameter(torch.ones(1))})), "0 holds something under the"),
        (changed(lambda m: setattr(m, "lock", threading.Lock())), "the model can't be copied: TypeError"),
    ],
)  # fmt: skip
def test_what_a_program_would_lose_is_refused_by_name(module: nn.Module, told: str) -> None:
    with pytest.raises(LoadError) as caught:
        refuse_uncarried(module, "model.py")
    assert str(caught.value).startswith(f"model.py: {told}")
    assert "\n" not in str(caught.value)


def held(tensor: Tensor) -> nn.Module:
    return nn.ParameterList([tensor])


def overlapping(make: Callable[[Tensor, nn.Sequential], object]) -> nn.Module:
    module = net()
    make(torch.ones(12), module)
    return module


@pytest.mark.parametrize(
    "module",
    [
        overlapping(lambda memory, m: m.extend(map(held, (memory[:8], memory[4:])))),
        overlapping(lambda memory, m: m.register_buffer("a", m[0].bias.data)),
        overlapping(lambda memory, m: setattr(m, "a", m[0].weight.data[1])),
        overlapping(lambda memory, m: setattr(m, "tied", nn.Parameter(m[0].weight.data))),
    ],
)  # fmt: skip
def test_a_trained_parameter_that_shares_memory_with_another_tensor_is_refused(module: nn.Module) -> None:
    with pytest.raises(LoadError, match="are two tensors in the same memory; register the same tensor"):
        refuse_uncarried(module, "model.py")


@pytest.mark.parametrize(
    "module",
    [
        net(),
        overlapping(lambda memory, m: m.extend(map(held, (memory[:6], memory[6:])))),
        overlapping(lambda memory, m: (m.register_buffer("a", memory), m.register_buffer("b", memory[2:4]))),
        overlapping(lambda memory, m: setattr(m, "tied", m[0].weight)),
        overlapping(lambda memory, m: m.register_buffer("same", m[1].running_mean)),
        overlapping(lambda memory, m: (m.register_buffer("a", memory), setattr(m, "plain", m.a))),
        with_buffer(torch.empty(0)),
        with_buffer(torch.ones(1).expand(5)),
        changed(lambda m: m.register_forward_hook(lambda *_: None)),
        changed(lambda m: m.register_load_state_dict_pre_hook(lambda *_: None)),
        changed(lambda m: m[1].register_buffer("more", None)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2)),
        nn.LSTM(2, 3, num_layers=2),
        nn.Linear(2, 2, device="meta"),
    ],
)  # fmt: skip
def test_what_a_program_carries_passes_and_stays_untouched(module: nn.Module) -> None:
    before = copy.deepcopy(module)
    refuse_uncarried(module, "model.py")
    assert str(module) == str(before)


def test_tensors_that_nothing_trains_are_named() -> None:
    module = net()
    module.register_buffer("temperature", torch.ones(1, requires_grad=True))
    module[0].window = torch.ones(2, requires_grad=True)  # type: ignore[index]
    module.constant = torch.ones(2)
    assert sorted(untrained_notes(module)) == [
        "0.window requires a gradient but is no parameter: nothing trains it",
        "temperature requires a gradient but is no parameter: nothing trains it",
    ]
