"""Observing a model's step without a trace in it, and telling how far two observations are apart."""

import random
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from stanza_compiler.comparison import (
    Difference,
    Observation,
    difference,
    observe,
    preserved,
    repeats_itself,
    resized_targets,
    seeded,
)
from stanza_compiler.loader import Source
from tests.source_of import source_of


class Affine(nn.Module):
    """y = w x with w = 3, a frozen bias, an unused parameter, a buffer that counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([3.0]))
        self.b = nn.Parameter(torch.tensor([1.0]), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.w * x + self.b


def affine() -> Source:
    return source_of(
        Affine(),
        torch.tensor([[1.0], [2.0]]),
        targets=torch.tensor([[4.0], [5.0]]),
        loss_fn=lambda outputs, targets: (outputs - targets).square().mean(),
    )


def test_a_training_step_shows_outputs_loss_gradients_and_buffers_as_by_hand() -> None:
    source = affine()
    seen = observe(source.module, source, batch=2, training=True)
    assert [output.tolist() for output in seen.outputs] == [[[4.0], [7.0]]]
    assert seen.loss is not None
    assert seen.loss.item() == pytest.approx((0 + 4) / 2)
    assert seen.gradients["w"] is not None
    assert seen.gradients["w"].item() == pytest.approx((0 * 1 + 2 * 2 * 2) / 2)
    assert seen.gradients["unused"] is None
    assert "b" not in seen.gradients
    assert seen.buffers == {"calls": torch.tensor(1)}


def test_items_and_targets_are_repeated_together() -> None:
    source = affine()
    seen = observe(source.module, source, batch=3, training=True)
    assert seen.outputs[0].flatten().tolist() == [4.0, 7.0, 4.0]
    assert seen.loss is not None
    assert seen.loss.item() == pytest.approx(4 / 3)


def test_an_eval_step_has_no_gradients() -> None:
    source = affine()
    assert observe(source.module, source, batch=2, training=False).gradients == {}


@pytest.mark.parametrize("training", [True, False])
def test_the_observed_model_is_as_it_was(training: bool) -> None:
    source = affine()
    module = source.module
    module.drop.eval()
    module.w.grad = torch.tensor([7.0])
    state = torch.random.get_rng_state()
    observe(module, source, batch=2, training=training)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (module.training, module.drop.training) == (True, False)
    assert module.calls == 0
    assert module.w.grad.item() == 7.0


def test_hooks_and_caches_that_the_first_forward_makes_are_gone_afterwards() -> None:
    class Lazy(nn.Module):
        """Hooks itself once, as transformers' models do to collect hidden states."""

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.hooked = nn.Linear(1, 1), False
            self.seen: list[torch.Tensor] = []
            self.cache: dict[str, int] = {}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.cache["calls"] = self.cache.get("calls", 0) + 1
            if not self.hooked:
                self.layer.register_forward_hook(lambda module, args, output: self.seen.append(output))
                self.hooked = True
            self.layer(x)
            return torch.stack(self.seen).sum(0)

    source = source_of(Lazy(), torch.ones(2, 1))
    first = observe(source.module, source, batch=2, training=True)
    again = observe(source.module, source, batch=2, training=True)
    assert torch.equal(first.outputs[0], again.outputs[0])
    assert (len(source.module.seen), source.module.cache, source.module.layer._forward_hooks) == (0, {}, {})


def test_what_was_preserved_comes_back_after_an_error_too() -> None:
    module = Affine().eval()

    def fail_halfway() -> None:
        module.train()
        module.calls += 5
        torch.rand(3)
        raise ZeroDivisionError

    state = torch.random.get_rng_state()
    with pytest.raises(ZeroDivisionError), preserved(module):
        fail_halfway()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not module.training
    assert module.calls == 0


def test_a_buffer_or_attribute_that_forward_replaces_comes_back() -> None:
    class Replacing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(2, 1))
            self.register_buffer("late", None)
            self.steps = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = x * 2
            self.late = x
            self.steps += 1
            return x * 1.0

    module = Replacing()
    before = module.last
    source = source_of(module, torch.ones(2, 1))
    seen = observe(module, source, batch=2, training=False)
    assert seen.buffers["last"].tolist() == [[2.0], [2.0]]
    assert module.last is before
    assert module.last.tolist() == [[0.0], [0.0]]
    assert module.late is None
    assert module.steps == 0


def test_torch_random_and_numpy_are_seeded_and_go_on_afterwards_where_they_were() -> None:
    def draw() -> tuple[float, float, float]:
        return torch.rand(1).item(), random.random(), np.random.rand()

    with seeded(1):
        inside = draw()
        with seeded(2):
            assert draw() != inside
        after = draw()
    with seeded(1):
        assert (draw(), draw()) == (inside, after)


def test_targets_are_resized_in_their_containers_and_scalars_kept() -> None:
    targets = {"label": torch.tensor([4, 5]), "weight": torch.tensor(2.0), "name": "x"}
    resized = resized_targets(targets, 3)
    assert resized["label"].tolist() == [4, 5, 4]
    assert resized["weight"].item() == 2.0
    assert resized["name"] == "x"
    assert resized_targets(None, 3) is None


@dataclass
class Record:
    scores: torch.Tensor
    note: str


class Returning(nn.Module):
    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.wrap = wrap

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(x)


@pytest.mark.parametrize(
    ("wrap", "structure", "tensors"),
    [
        (lambda x: x, "tensor", 1),
        (lambda x: (x, None), "tuple(tensor, None)", 1),
        (lambda x: [x, 3], "list(tensor, 3)", 1),
        (lambda x: {"b": x, "a": (x,)}, "{'b': tensor, 'a': tuple(tensor)}", 2),
        (lambda x: OrderedDict(b=x, a=x), "{'b': tensor, 'a': tensor}", 2),
        (lambda x: torch.return_types.max((x, x.long())), "max(tensor, tensor)", 2),
        (lambda x: Record(x, "hi"), "Record(scores=tensor, note='hi')", 1),
    ],
)
def test_an_outputs_containers_keys_and_constants_are_part_of_what_is_seen(
    wrap: Any, structure: str, tensors: int
) -> None:
    source = source_of(Returning(wrap), torch.ones(2, 1), loss_fn=lambda outputs, targets: torch.zeros(()))
    seen = observe(source.module, source, batch=2, training=False)
    assert seen.structure == structure
    assert len(seen.outputs) == tensors


ONES = torch.ones(3)
SEEN = Observation((ONES,), "tensor", torch.tensor(2.0), {"w": ONES, "u": None}, {"n": ONES})


def test_equal_observations_do_not_differ() -> None:
    nothing = replace(SEEN, outputs=(torch.full((3,), torch.nan),))
    assert difference(SEEN, SEEN) == Difference("", 0.0, 0.0, True)
    assert difference(nothing, nothing) == Difference("", 0.0, 0.0, True)


@pytest.mark.parametrize(
    ("other", "first"),
    [
        (replace(SEEN, outputs=(ONES + 0.25,)), "output 0 differs: "),
        (replace(SEEN, outputs=(ONES[:2],)), "output 0 differs: "),
        (replace(SEEN, outputs=(ONES.double(),)), "output 0 differs: "),
        (replace(SEEN, structure="list(tensor)"), "the output is list(tensor), not tensor"),
        (replace(SEEN, loss=torch.tensor(3.0)), "the loss differs: "),
        (replace(SEEN, gradients={"w": ONES * 1.01, "u": None}), "the gradient of w differs: "),
        (replace(SEEN, gradients={"w": None, "u": None}), "the gradient of w is missing"),
        (replace(SEEN, gradients={"w": ONES, "u": ONES}), "the gradient of u is extra"),
        (replace(SEEN, gradients={"u": None}), "the gradient of w is missing"),
        (replace(SEEN, buffers={"n": ONES * 2}), "buffer n differs: "),
        (replace(SEEN, buffers={}), "buffer n differs: "),
    ],
)
def test_the_first_thing_out_of_tolerance_is_named(other: Observation, first: str) -> None:
    assert difference(SEEN, other).first.startswith(first)
    assert difference(SEEN, other).buffers_equal is (not first.startswith("buffer"))


def test_sizes_of_differences_are_reported_within_tolerance_too() -> None:
    other = replace(SEEN, outputs=(ONES + 2**-20,), gradients={"w": ONES - 2**-19, "u": None})
    assert difference(SEEN, other) == Difference("", 2**-20, 2**-19, True)


def test_sparse_and_complex_gradients_are_compared_by_value() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.tensor([2.0]), (3,), check_invariants=True)
    other = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([1.0, 1.0]), (3,), check_invariants=True)
    one, two = (replace(SEEN, gradients={"w": gradient}) for gradient in (sparse, other))
    assert difference(one, two).first == ""
    complex_one = replace(SEEN, gradients={"w": torch.tensor([3 + 4j])})
    complex_two = replace(SEEN, gradients={"w": torch.tensor([0j])})
    assert difference(complex_one, complex_two).gradient == pytest.approx(5.0)


def test_a_difference_is_told_in_one_line() -> None:
    assert "\n" not in difference(SEEN, replace(SEEN, outputs=(ONES + 0.25,))).first


def test_a_buffer_that_cannot_be_written_is_left_alone() -> None:
    module = Affine()
    module.register_buffer("expanded", torch.ones(1).expand(3))
    with preserved(module):
        module(torch.ones(1, 1))
        assert module.calls.item() == 1
    assert module.calls.item() == 0
    assert module.get_buffer("expanded").tolist() == [1.0, 1.0, 1.0]


def test_a_model_with_a_buffer_that_cannot_be_written_repeats_itself() -> None:
    class Shifted(Affine):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + self.get_buffer("expanded")

    module = Shifted()
    module.register_buffer("expanded", torch.ones(1).expand(3))
    assert repeats_itself(source_of(module, torch.ones(2, 1)))
    assert module.calls.item() == 0
