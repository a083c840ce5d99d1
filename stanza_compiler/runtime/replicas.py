"""DistributedDataParallel over the parameters that are really trained."""

import inspect
from collections.abc import Collection
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .codecs import PLAIN, Codecs
from .late_sums import LateSums
from .loss import Loss
from .plan_file import MOST_BUCKET


def replicate(
    stage: nn.Module,
    trained: Collection[str],
    group: dist.ProcessGroup | None,
    *,
    bucket_bytes: int = MOST_BUCKET,
    sums: LateSums | None = None,
) -> nn.Module:
    """`stage` with its gradients averaged over `group` during backward, `bucket_bytes` at once.

    With `sums` they are summed instead: backward does not wait, and they travel coded as those say. The stage itself
    when it is alone or has nothing to train.

    Parameters that no backward reaches are left out: their gradients stay None, as in one process.
    """
    if group is None or not trained:
        return stage
    idle = [
        parameter for name, parameter in stage.named_parameters() if parameter.requires_grad and name not in trained
    ]
    for parameter in idle:
        parameter.requires_grad_(False)
    # Newer torch calls the flag by another name, and warns about the old one.
    flags = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in flags else "broadcast_buffers"
    options: dict[str, Any] = {"process_group": group, "gradient_as_bucket_view": True, buffers: False}
    if bucket_bytes < MOST_BUCKET:  # its own default has a smaller first bucket, which no number brings back
        options["bucket_cap_mb"] = bucket_bytes / (1 << 20)
    replica = DistributedDataParallel(stage, **options)
    if sums is not None:
        sums.attach(replica, group)
    for parameter in idle:
        parameter.requires_grad_(True)
    return replica


def refuse_constant(loss: Loss, stage: nn.Module, replica: nn.Module) -> None:
    """Raise ValueError when a loss of a replica's has no gradient: the other ranks would wait for this one's share."""
    if replica is not stage and not loss.total.requires_grad:
        what = "loss_fn gave a loss without gradient, while other ranks wait for this one's gradients"
        raise ValueError(f"{what}; make it of the outputs, like outputs.sum() * 0")


def refuse_unsummed(stage: nn.Module, summed: Collection[str]) -> None:
    """Raise ValueError when another parameter of a stage on several ranks has a gradient: copies would drift apart."""
    for name, parameter in stage.named_parameters():
        if parameter.grad is not None and name not in summed:
            what = f"{name} got its first gradient after the first step, in which the ranks agreed on what they sum"
            raise ValueError(f"{what}; let every step reach it, if only by adding {name}.sum() * 0 to something")


def allreduce_bytes(
    stage: nn.Module, trained: Collection[str], group: dist.ProcessGroup | None, codecs: Codecs = PLAIN
) -> int:
    """The bytes that this rank sent for the gradients of a step: 2(n-1)/n of their size over a ring of n ranks.

    Of a sparse gradient the rows go to n-1 others; the rows of the sum over n are taken for a rank's own.
    """
    if group is None:
        return 0
    size = dist.get_world_size(group)
    sent = 0
    for name, parameter in stage.named_parameters():
        if name in trained and parameter.grad is not None:
            gradient = parameter.grad
            if gradient.is_sparse:
                sent += (size - 1) * (gradient._indices().nbytes + gradient._values().nbytes) // size
            else:
                width = codecs.summed_in(gradient.dtype).itemsize
                sent += 2 * (size - 1) * gradient.numel() * width // size
    return sent
