"""Where the samples of a batch influence each other."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stanza_compiler.passes.coupling import Coupling, coupling
from stanza_compiler.passes.profile import profile
from stanza_compiler.passes.trace import trace
from tests.source_of import source_of


class Calling(nn.Module):
    """Two linear layers around a function of the activation between them."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(3, 3), nn.Linear(3, 3), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.function(self.first(x)))


X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def coupling_of(model: nn.Module, *inputs: torch.Tensor, **options: Any) -> Coupling:
    source = source_of(model, *inputs, **options)
    traced = trace(source, verify=False)
    return coupling(source, traced, profile(source, traced).graph)


@pytest.mark.parametrize(
    "function",
    [
        torch.relu,
        lambda h: h / h.norm(dim=1, keepdim=True),
        lambda h: h.softmax(1),
        lambda h: h.relu_(),
        lambda h: h.t().cumsum(0).t(),
        lambda h: F.dropout(h, 0.5, training=False),
    ],
)
def test_samples_that_do_not_meet_are_not_coupled(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert coupling_of(Calling(function), X) == Coupling()


@pytest.mark.parametrize(
    ("function", "ops"),
    [
        (lambda h: h / h.norm(), ("norm", "truediv", "last")),
        (lambda h: h - h.mean(0), ("mean", "sub", "last")),
        (lambda h: h - torch.var_mean(h, 0, correction=0)[1], ("var_mean", "getitem", "sub", "last")),
        (lambda h: h.softmax(0), ("softmax", "last")),
        (lambda h: h.cumsum(0), ("cumsum", "last")),
        (lambda h: h.flip(0), ("flip", "last")),
        (lambda h: h.t().flip(1).t(), ("flip", "t_1", "last")),
    ],
)
def test_the_op_that_mixes_samples_and_all_that_it_reaches_are_coupled(
    function: Callable[[torch.Tensor], torch.Tensor], ops: tuple[str, ...]
) -> None:
    found = coupling_of(Calling(function), X)
    line = f"test_coupling.py:{function.__code__.co_firstlineno}"
    assert found.ops == ops
    assert found.reason == f"{ops[0]}, {line}, mixes the samples of a batch"
    assert found.notes == ()


def test_a_branch_beside_the_coupled_ops_is_not_coupled() -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            h = x.tanh()
            return h.softmax(0), h.cos()

    assert coupling_of(Branching(), X).ops == ("softmax",)


def test_batch_norm_does_not_couple_because_it_is_reported_elsewhere() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    assert coupling_of(model, X) == Coupling()


def mean_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets)


def sum_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets, reduction="sum")


def contrastive_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs @ outputs.t(), torch.arange(len(outputs)))


def counted_loss(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    valid = targets != 2
    return F.cross_entropy(outputs[valid], targets[valid], reduction="sum"), valid.sum()


def uncounted_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets, ignore_index=2)


@pytest.mark.parametrize(
    ("loss", "adds_up"),
    [
        (None, True),
        (mean_loss, True),
        (counted_loss, True),
        (sum_loss, False),
        (contrastive_loss, False),
        (uncounted_loss, False),
    ],
)
def test_a_loss_that_is_no_mean_over_samples_needs_one_host(loss: Callable[..., Any] | None, adds_up: bool) -> None:
    found = coupling_of(Calling(torch.relu), X, loss_fn=loss, targets=torch.tensor([0, 2, 1, 0]))
    reason = "the loss is not a mean over samples"
    expected = Coupling(reason=reason)
    assert found == (Coupling() if adds_up else expected)


def test_an_example_of_one_sample_is_not_tested_and_that_is_noted() -> None:
    (note,) = coupling_of(Calling(torch.relu), X[:1]).notes
    assert note == "whether samples influence each other was not tested: the example holds fewer than 2"


def test_equal_samples_hide_no_coupling() -> None:
    assert coupling_of(Calling(lambda h: h - h.mean(0)), torch.ones(4, 3)).ops == ("mean", "sub", "last")


def test_a_loss_made_in_the_model_from_pairs_of_samples_is_coupled_back_to_where_they_meet() -> None:
    class Contrastive(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            h = x.tanh()
            return {"loss": (h @ h.mT).logsumexp(1).mean()}

    found = coupling_of(Contrastive(), X)
    assert found.ops == ("matmul", "logsumexp")
    assert found.reason.startswith("matmul, test_coupling.py:")


def test_a_loss_made_in_the_model_from_a_statistic_of_the_batch_keeps_the_statistic_with_it() -> None:
    class Centred(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": x.tanh().mean(0).norm()}

    found = coupling_of(Centred(), X)
    assert found.ops == ("mean", "norm")
    assert found.reason == "the loss is not a mean over samples"


def test_a_loss_made_in_the_model_as_a_mean_over_samples_is_not_coupled() -> None:
    class Averaging(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": x.tanh().square().mean()}

    assert coupling_of(Averaging(), X) == Coupling()


def test_a_model_that_takes_no_other_batch_is_not_tested_and_that_is_noted() -> None:
    class Picky(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(-1, 2, 3).relu()

    (note,) = coupling_of(Picky(), X).notes
    assert note == (
        "whether samples influence each other was not tested: the model takes no batch of 1 or 3 (RuntimeError)"
    )


def test_the_model_its_mode_its_buffers_and_the_random_numbers_are_as_before() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout())
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    state = torch.random.get_rng_state()
    coupling_of(model, X)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(buffers[name], buffer) for name, buffer in model.named_buffers())
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_batch_axis_that_is_not_the_first_is_split_where_it_is() -> None:
    class TimeFirst(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.cumsum(0).permute(1, 0, 2)

    assert coupling_of(TimeFirst(), torch.randn(5, 4, 3), batch_axes={"x": 1}) == Coupling()


class Numbering(nn.Module):
    """Picks each sample's own row by its number, as attention masks do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers = torch.arange(x.size(0)) * 1
        return x[numbers] * 2


class Counted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + torch.arange(x.size(0)).view(-1, 1)


def test_numbers_of_samples_stay_with_those_who_use_them() -> None:
    found = coupling_of(Numbering(), X)
    assert found.together == (("arange", "mul"), ("mul", "getitem"))
    assert (found.ops, found.reason) == ((), "")


def test_numbers_of_samples_in_the_output_need_one_host() -> None:
    found = coupling_of(Counted(), X)
    assert "arange" in found.ops
    assert found.reason.startswith("arange")


class Hidden(nn.Module):
    """Mixes the samples in a value that later shows nothing of it on this batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * ((x - x.mean(0)) > 100)


def test_mixed_samples_count_even_where_nothing_of_it_is_left_later() -> None:
    assert "sub" in coupling_of(Hidden(), X).ops
