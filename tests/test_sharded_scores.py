"""The user's loss of scores that several hosts share, against the same loss of the whole scores."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stanza_compiler.runtime.peers import ALONE, Peers
from stanza_compiler.runtime.sharded_scores import ShardedScores
from tests.thread_peers import on_hosts

CLASSES, HOSTS = 11, 3  # 4 + 4 + 3 classes
LossFn = Callable[[Tensor, Tensor], Tensor]
WEIGHT = torch.linspace(0.1, 2.0, CLASSES, dtype=torch.float64)


def example(*sizes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = 5 * torch.randn(*sizes, CLASSES, generator=generator, dtype=torch.float64)
    return scores, torch.randint(CLASSES, sizes, generator=generator)


def assert_like_whole(loss_fn: LossFn, scores: Tensor, targets: Tensor, *, gathers: bool = False) -> None:
    """Loss and gradient on every host, and whether the scores were gathered."""
    whole = scores.clone().requires_grad_()
    expected = loss_fn(whole * 1, targets)
    expected.sum().backward()
    assert whole.grad is not None

    def on_host(peers: Peers) -> tuple[Tensor, Tensor | None, str]:
        columns = peers.columns(CLASSES)
        own = scores[..., columns.start : columns.stop].clone().requires_grad_()
        sharded = ShardedScores.of(own * 1, CLASSES, peers)
        loss = loss_fn(sharded, targets)
        loss.sum().backward()
        return loss.detach(), own.grad, sharded.uses.gathered_by

    results = on_hosts(HOSTS, on_host)
    for loss, _, gathered_by in results:
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=1e-12)
        assert torch.equal(loss, results[0][0])
        assert bool(gathered_by) == gathers
    gradient = torch.cat([each for _, each, _ in results if each is not None], -1)
    torch.testing.assert_close(gradient, whole.grad, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reduction": "sum"},
        {"reduction": "none"},
        {"ignore_index": 3},
        {"weight": WEIGHT},
        {"label_smoothing": 0.1},
        {"label_smoothing": 0.2, "weight": WEIGHT, "ignore_index": 1},
        {"label_smoothing": 0.3, "reduction": "none", "ignore_index": 2},
    ],
    ids=str,
)
def test_cross_entropy_is_computed_where_the_scores_are(options: dict[str, object]) -> None:
    scores, targets = example(40)
    assert_like_whole(nn.CrossEntropyLoss(**options), scores, targets)


def per_token(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.view(-1, scores.size(-1)), targets.flatten())


@pytest.mark.parametrize(
    "loss_fn",
    [
        per_token,
        lambda scores, targets: F.cross_entropy(scores.flatten(0, 1).float().double() / 0.5, targets.reshape(-1)),
        lambda scores, targets: F.cross_entropy(scores.transpose(1, 2), targets, reduction="none"),
        lambda scores, targets: F.cross_entropy((2 * scores).transpose(-1, -2), targets, ignore_index=4),
    ],
    ids=["view", "flatten", "transpose", "double"],
)
def test_shapes_and_multiples_that_leave_the_classes_alone_gather_nothing(loss_fn: LossFn) -> None:
    scores, targets = example(4, 6)
    assert_like_whole(loss_fn, scores.float().double(), targets)


def with_margin(scores: Tensor, targets: Tensor) -> Tensor:
    scores[torch.arange(len(targets)), targets] -= 0.5
    return F.cross_entropy(scores, targets)


@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda scores, targets: scores.square().mean(),
        lambda scores, targets: F.nll_loss(scores.log_softmax(-1), targets),
        lambda scores, targets: F.cross_entropy(scores, F.one_hot(targets, CLASSES).double()),
        lambda scores, targets: F.cross_entropy(scores, targets) + 0.1 * scores[:, 0].sum(),
        with_margin,
    ],
    ids=["square", "nll", "probabilities", "both", "margin"],
)
def test_other_losses_see_all_scores(loss_fn: LossFn) -> None:
    assert_like_whole(loss_fn, *example(9), gathers=True)


def test_a_row_may_be_ruled_out_on_a_whole_host() -> None:
    scores, targets = example(5)
    scores[0, :4] = -torch.inf  # all of host 0's classes
    targets[0] = 7
    assert_like_whole(F.cross_entropy, scores, targets)


def test_a_target_that_is_no_class_is_refused_as_torch_refuses_it() -> None:
    scores = ShardedScores.of(torch.randn(2, CLASSES), CLASSES, ALONE)
    with pytest.raises(IndexError, match="Target 11 is out of bounds"):
        F.cross_entropy(scores, torch.tensor([0, CLASSES]))


def test_writing_to_scores_that_have_views_is_refused() -> None:
    scores = ShardedScores.of(torch.randn(2, 3, CLASSES), CLASSES, ALONE)
    assert scores.flatten(0, 1).shape == (6, CLASSES)
    with pytest.raises(RuntimeError, match="mul_ writes to sharded scores of which there are views"):
        scores.mul_(2)


def test_facts_of_the_scores_are_those_of_all_of_them() -> None:
    scores = ShardedScores.of(torch.randn(2, 4, requires_grad=True), CLASSES, Peers(1, (0, 1, 2), None))
    assert (scores.shape, scores.size(-1), len(scores), scores.dim()) == ((2, CLASSES), CLASSES, 2, 2)
    assert scores.requires_grad
    assert scores.is_floating_point()
    assert scores.device == torch.device("cpu")
    assert "ShardedScores" in repr(scores)
    assert scores.uses.gathered_by == ""
