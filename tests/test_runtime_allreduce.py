"""When gradients are summed, seen from one rank whose communication is recorded."""

import pytest
import torch
from torch import Tensor, nn

from stanza_compiler.runtime import allreduce
from stanza_compiler.runtime.allreduce import GradientSum


class Work:
    def wait(self) -> None:
        """Nothing to wait for."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the buckets started so far; the other one of two ranks has the same gradients."""
    sizes: list[int] = []

    def double(tensor: Tensor, *, group: object, async_op: bool) -> Work:
        assert async_op
        sizes.append(tensor.numel())
        tensor.mul_(2)
        return Work()

    monkeypatch.setattr(allreduce.dist, "all_reduce", double)
    monkeypatch.setattr(allreduce.dist, "get_world_size", lambda group: 2)
    return sizes


def gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def test_a_bucket_starts_as_soon_as_its_last_gradient_exists(started: list[int]) -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    parameters = [*first.parameters(), *second.parameters()]
    reducer = GradientSum([(parameter, False) for parameter in parameters], None, bucket_bytes=80)
    x = torch.randn(3, 4)
    h = first(x)
    before_first: list[list[int]] = []
    h.register_hook(lambda _: before_first.append(list(started)))
    reducer.arm()
    second(h).sum().backward()
    own = [gradient(parameter).clone() for parameter in parameters]
    assert before_first == [[20]]
    assert reducer.finish() == 160
    for parameter, expected in zip(parameters, own, strict=True):
        assert torch.equal(gradient(parameter), 2 * expected)


def test_absent_gradients_count_as_zero(started: list[int]) -> None:
    idle = nn.Linear(2, 2)
    GradientSum([(parameter, False) for parameter in idle.parameters()], None).finish()
    assert started == [6]
    assert gradient(idle.weight).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_only_the_last_backward_before_finish_starts_buckets(started: list[int]) -> None:
    layer = nn.Linear(4, 4)
    reducer = GradientSum([(parameter, False) for parameter in layer.parameters()], None)
    x = torch.randn(3, 4)
    layer(x).sum().backward()
    assert started == []
    reducer.arm()
    layer(x).sum().backward()
    assert started == [20]
    reducer.finish()
    assert gradient(layer.bias).tolist() == [12.0] * 4


def test_a_parameter_that_a_later_backward_reaches_too_is_not_summed_before_it(started: list[int]) -> None:
    tied, behind = nn.Linear(3, 3, bias=False), nn.Linear(3, 2, bias=False)
    reducer = GradientSum([(tied.weight, False), (behind.weight, False)], None, bucket_bytes=1)
    x = torch.randn(4, 3)
    front = tied(x)
    leaf = front.detach().requires_grad_()
    reducer.arm(later=[tied.weight])
    behind(tied(leaf)).sum().backward()
    assert started == [6]
    reducer.arm()
    front.backward(leaf.grad)
    assert started == [6, 9]
    own = gradient(tied.weight).clone()
    reducer.finish()
    assert torch.equal(gradient(tied.weight), own)
    tied.zero_grad()
    behind.zero_grad()
    behind(tied(tied(x))).sum().backward()
    assert torch.allclose(own, 2 * gradient(tied.weight))


def test_a_gradient_that_grows_after_its_sum_has_started_is_an_error(started: list[int]) -> None:
    layer = nn.Linear(2, 2, bias=False)
    reducer = GradientSum([(layer.weight, False)], None)
    reducer.arm()
    layer(torch.ones(1, 2)).sum().backward()
    with pytest.raises(AssertionError, match="a gradient grew"):
        layer(torch.ones(1, 2)).sum().backward()


def test_sparse_gradients_stay_sparse_and_travel_alone(started: list[int]) -> None:
    table, layer = nn.Embedding(6, 2, sparse=True), nn.Linear(2, 1)
    reducer = GradientSum([(table.weight, True), *((p, False) for p in layer.parameters())], None)
    reducer.arm()
    layer(table(torch.tensor([1, 1, 4]))).sum().backward()
    sent = reducer.finish()
    assert gradient(table.weight).is_sparse
    assert len(started) == 2
    # three rows of an index and two floats to the one other rank; a ring of two over the three dense floats
    assert sent == 3 * (8 + 8) + 12
