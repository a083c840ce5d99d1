"""Weight gradients computed beside or after a backward are autograd's own."""

from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stanza_compiler.runtime import late_layers
from stanza_compiler.runtime.late_gradients import LateGradients


class _Tied(nn.Module):
    """A table that is the last layer's weight as well, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.middle = nn.Linear(6, 6)
        self.last = nn.Linear(6, 11)
        self.last.weight = self.table.weight

    def forward(self, ids: Tensor) -> Any:
        return self.last(self.middle(self.middle(self.table(ids)))).square().sum()


class _Late(Executor):
    """Runs the first task at once, and leaves the others to whoever cancels them."""

    def __init__(self) -> None:
        self.submitted = 0

    def submit(self, task: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.submitted += 1
        if self.submitted == 1:
            future.set_running_or_notify_cancel()
            future.set_result(task())
        return future


@pytest.fixture(params=["alone", "two threads", "one task beside"])
def beside(request: pytest.FixtureRequest) -> Iterator[Executor | None]:
    """Who computes beside the thread of the test."""
    if request.param == "two threads":
        with ThreadPoolExecutor(2) as pool:
            yield pool
    else:
        yield None if request.param == "alone" else _Late()


@pytest.fixture(autouse=True)
def small_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every gradient below is cut into several pieces."""
    monkeypatch.setattr(late_layers, "CUT", 8)


@pytest.mark.parametrize("make", [_Tied, lambda: nn.Sequential(nn.Embedding(9, 5), nn.Linear(5, 7), nn.Linear(7, 3))])
def test_two_backwards_add_up_to_what_autograd_gives(make: Any, beside: Executor | None) -> None:
    torch.manual_seed(0)
    stage = make().double()
    batches = [torch.tensor([[1, 2, 2], [0, 5, 8]]), torch.tensor([[3, 2, 1]])]
    for ids in batches:
        stage(ids).sum().backward()
    expected = {name: parameter.grad.clone() for name, parameter in stage.named_parameters()}
    stage.zero_grad(set_to_none=True)
    late = LateGradients(stage, beside)
    for ids in batches:
        with late.forward():
            loss = stage(ids).sum()
        late.backward([loss], [None])
        late.begin()
    late.compute()
    for name, parameter in stage.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.parametrize("make", [_Tied, lambda: nn.Sequential(nn.Embedding(9, 5), nn.Linear(5, 7), nn.Linear(7, 3))])
def test_gradients_that_nobody_wants_are_taken_from_the_parameters_at_once(make: Any, beside: Executor | None) -> None:
    torch.manual_seed(0)
    stage, ids = make().double(), torch.tensor([[1, 2, 2], [0, 5, 8]])
    own, *_ = stage.parameters()
    stage(ids).sum().backward()
    expected = {name: (each - 0.5 * each.grad).detach() for name, each in stage.named_parameters() if each is not own}
    expected_gradient, before = own.grad.clone(), own.detach().clone()
    stage.zero_grad(set_to_none=True)
    late = LateGradients(stage, beside, rate=lambda parameter: None if parameter is own else 0.5)
    with late.forward():
        loss = stage(ids).sum()
    late.backward([loss], [None])
    late.begin()
    late.compute()
    torch.testing.assert_close(own.grad, expected_gradient, rtol=1e-12, atol=1e-12)
    assert torch.equal(own, before)
    for name, parameter in stage.named_parameters():
        if parameter is not own:
            assert parameter.grad is None, name
            torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-12, atol=1e-12, msg=name)


def test_what_another_thread_raises_is_raised_here() -> None:
    stage = nn.Linear(3, 2)
    with ThreadPoolExecutor(1) as pool:
        late = LateGradients(stage, pool)
        with late.forward():
            loss = stage(torch.ones(4, 3)).sum()
        late.backward([loss], [None])
        stage.weight.grad = torch.zeros(1, 1).expand(2, 3)  # nothing can be added to it in place
        late.begin()
        with pytest.raises(RuntimeError, match="single memory location"):
            late.compute()


def test_a_product_with_a_parameter_itself_has_its_values_from_before_the_update() -> None:
    class Keys(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj, self.table = nn.Linear(4, 4, bias=False), nn.Embedding(5, 4)

        def forward(self, ids: Tensor) -> Tensor:
            keys = self.proj(self.table.weight.detach())
            return self.table(ids) @ keys.T

    torch.manual_seed(0)
    stage, ids = Keys(), torch.tensor([0, 3, 3])
    names = [name for name, _ in stage.named_parameters()]
    gradients = torch.autograd.grad(stage(ids).square().sum(), list(stage.parameters()))
    expected = [each.detach() - 0.1 * gradient for each, gradient in zip(stage.parameters(), gradients, strict=True)]
    late = LateGradients(stage, rate=lambda parameter: 0.1)
    with late.forward():
        loss = stage(ids).square().sum()
    late.backward([loss], [None])
    late.compute()
    for name, parameter, value in zip(names, stage.parameters(), expected, strict=True):
        found = parameter.detach() if parameter.grad is None else parameter.detach() - 0.1 * parameter.grad
        assert torch.allclose(found, value, rtol=1e-5, atol=1e-6), name
