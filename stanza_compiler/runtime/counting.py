"""What the loss of a step is divided by."""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from .errors import DisagreementError
from .groups import sum_count
from .loss import Loss
from .transfer import waiting_for


class GlobalCount:
    """The samples, or what loss_fn counts, of the whole batch, on every rank that computes a part of the loss."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self._counted: bool | None = None

    @property
    def needs_targets(self) -> bool:
        """Whether the count is known only once all losses of the step are; so until the form of the loss is known."""
        return self._counted is not False

    def of_step(self, loss: Loss | None, samples: Sequence[int]) -> float:
        """The count of a step; `loss` is None on a rank without samples, which learns the form from the others.

        Raises DisagreementError when loss_fn gives a mean on some ranks, (sum, count) on others.
        """
        if self._counted is None:
            forms = set(gather(loss.counted if loss is not None else None, self._group)) - {None}
            if len(forms) != 1:
                raise DisagreementError("loss_fn gives a mean on some ranks, (sum, count) on others")
            self._counted = bool(forms.pop())
        if not self._counted:
            return float(sum(samples))
        return sum_count(loss.count if loss is not None else 0.0, self._group)


def gather(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """The values of all ranks of `group`."""
    if group is None:
        return [value]
    values: list[Any] = [None] * dist.get_world_size(group)
    with waiting_for("forms of all ranks that share a role"):
        dist.all_gather_object(values, value, group=group)
    return values
