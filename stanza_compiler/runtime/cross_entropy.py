"""Cross-entropy of class scores of which every host has some of the classes."""

from typing import Any

import torch
from torch import Tensor

from .peers import Peers


def sharded_cross_entropy(
    scores: Tensor,
    targets: Tensor,
    peers: Peers,
    classes: int,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """torch.nn.functional.cross_entropy of scores [N, own classes] and class numbers [N], the same on every host.

    Raises IndexError for a target that is no class, ValueError for an unknown reduction.
    """
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    counts = targets != ignore_index
    outside = counts & ((targets < 0) | (targets >= classes))
    if outside.any():
        raise IndexError(f"Target {int(targets[outside][0])} is out of bounds.")
    columns = peers.columns(classes)
    places = torch.where(counts, targets, 0)
    log_sums, picked, highest = _LogSums.apply(scores, places - columns.start, peers)
    weights = torch.ones_like(log_sums) if weight is None else weight.to(log_sums.dtype)[places]
    weights = weights * counts
    losses: Tensor = (log_sums - picked) * weights
    if label_smoothing:
        own = scores.new_ones(len(columns)) if weight is None else weight[columns.start : columns.stop].to(scores.dtype)
        all_weights = float(classes) if weight is None else weight.to(log_sums.dtype).sum()
        smooth = ((log_sums + highest) * all_weights - _SumOverHosts.apply(scores @ own, peers)) * counts
        losses = (1 - label_smoothing) * losses + label_smoothing / classes * smooth
    if reduction == "mean":
        losses = losses.sum() / weights.sum()
    elif reduction == "sum":
        losses = losses.sum()
    return losses


class _LogSums(torch.autograd.Function):
    """log(sum(exp(scores))) over all hosts' classes and the score of each row's target, both less the row's largest.

    That one is the third result; to gradients it is a constant. `places` [N] count from the host's first class. One
    exchange of three numbers a row; of the scores' size there is one buffer, which becomes the gradient.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, places: Tensor, peers: Peers) -> tuple[Tensor, Tensor, Tensor]:
        lowest = torch.finfo(scores.dtype).min
        peaks = scores.amax(-1).clamp(min=lowest)  # a row may be -inf throughout on this host
        exponentials = (scores - peaks.unsqueeze(-1)).exp_()
        sums = exponentials.sum(-1)
        here = (places >= 0) & (places < scores.shape[-1])
        columns = torch.where(here, places, 0)
        picked = torch.where(here, scores.gather(-1, columns.unsqueeze(-1)).squeeze(-1), 0.0)
        all_peaks, all_sums, all_picked = peers.collect(torch.stack((peaks, sums, picked))).unbind(1)
        highest = all_peaks.amax(0)
        total = (all_sums * (all_peaks - highest).exp()).sum(0)
        ctx.exponentials, ctx.share = exponentials, (peaks - highest).exp() / total
        ctx.here, ctx.columns = here, columns
        ctx.mark_non_differentiable(highest)
        return total.log(), all_picked.sum(0) - highest, highest

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        of_log_sums, of_picked, _ = gradients
        scores = ctx.exponentials
        assert scores is not None, "a second backward through one loss"
        ctx.exponentials = None
        scores.mul_((ctx.share * of_log_sums).unsqueeze(-1))
        scores.scatter_add_(-1, ctx.columns.unsqueeze(-1), (of_picked * ctx.here).unsqueeze(-1))
        return scores, None, None


class _SumOverHosts(torch.autograd.Function):
    """A sum that every host has; each host's summand has its gradient."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, peers: Peers) -> Tensor:
        return peers.collect(own).sum(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
