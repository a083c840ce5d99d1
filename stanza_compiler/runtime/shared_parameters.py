"""Parameters that both stages hold: every copy gets the gradient of all copies."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .allreduce import no_rows
from .counting import gather
from .program import OWNER, SharedParameter
from .transfer import waiting_for


class SharedGradients:
    """Sums the gradients of shared parameters over the ranks of both roles, once a step and in one fixed order.

        CONV rank 0   g0 ──────────────┐                             ┌──> gradient of its copy
        CONV rank 1   g1 ──────────────┼──> one flat sum per dtype ──┼──> gradient of its copy
        host          g2 ──────────────┘                             └──> gradient of its copy

    A rank of both roles has two copies: it adds up what both got, and gives both the same bytes. So copies that are
    equal before a step are equal after it, to the bit. Sparse gradients stay sparse where every copy has a sparse one.
    """

    def __init__(
        self, copies: Sequence[Mapping[str, nn.Parameter]], group: dist.ProcessGroup, forms: dist.ProcessGroup
    ) -> None:
        """`copies` are this rank's, by name: CONV's, FC's, or both; `forms` (gloo) is asked once."""
        self._copies, self._group, self._forms = copies, group, forms
        self._sparse: dict[str, bool] | None = None

    def reduce(self, counted: Sequence[bool]) -> int:
        """Give every copy the sum over all ranks; return the bytes that this rank sent.

        `counted` say of each of the copies whether its gradients are part of it. A parameter that no backward
        reached in the first step keeps the gradient None, as in one process.
        """
        own = {name: self._own(name, counted) for name in self._copies[0]}
        if self._sparse is None:
            self._sparse = self._agree(own)
        late = [name for name, gradients in own.items() if gradients and name not in self._sparse]
        assert not late, f"the first gradients of {late} came after the first step"
        sums, sent = self._summed(own, self._sparse)
        for name, total in sums.items():
            for number, copies in enumerate(self._copies):
                copies[name].grad = total.clone() if number else total  # an optimiser may write to it
        return sent

    def _own(self, name: str, counted: Sequence[bool]) -> list[Tensor]:
        """The gradients of this rank's copies."""
        found = [copies[name].grad for copies, counts in zip(self._copies, counted, strict=True) if counts]
        return [gradient for gradient in found if gradient is not None]

    def _agree(self, own: Mapping[str, Sequence[Tensor]]) -> dict[str, bool]:
        """By name, whether the sum is sparse; the same on all ranks."""
        forms = {name: all(gradient.is_sparse for gradient in found) for name, found in own.items() if found}
        everyones = gather(forms, self._forms)
        return {
            name: all(form[name] for form in everyones if name in form)
            for name in own
            if any(name in form for form in everyones)
        }

    def _summed(self, own: Mapping[str, list[Tensor]], sparse: Mapping[str, bool]) -> tuple[dict[str, Tensor], int]:
        """The sums over all ranks by name, and the bytes that this rank sent: of a sparse one its rows to all others.

        Dense ones travel as one flat tensor for each dtype.
        """
        size = dist.get_world_size(self._group)
        sums: dict[str, Tensor] = {}
        parameters = self._copies[0]
        works, sent = [], 0
        for dtype in dict.fromkeys(parameters[name].dtype for name in sparse if not sparse[name]):
            names = [name for name in sparse if not sparse[name] and parameters[name].dtype == dtype]
            rows = [_dense(own[name], parameters[name]) for name in names]
            flat = torch.cat(rows) if len(rows) > 1 else rows[0].contiguous()
            works.append(dist.all_reduce(flat, group=self._group, async_op=True))
            sent += 2 * (size - 1) * flat.nbytes // size
            pieces = torch.split(flat, [parameters[name].numel() for name in names])
            sums |= {name: piece.view_as(parameters[name]) for name, piece in zip(names, pieces, strict=True)}
        for name in (name for name in sparse if sparse[name]):
            sums[name] = _sparse(own[name], parameters[name])
            sent += (size - 1) * (sums[name]._indices().nbytes + sums[name]._values().nbytes)
            works.append(dist.all_reduce(sums[name], group=self._group, async_op=True))
        with waiting_for("sum of the parameters that both roles hold"):
            for work in works:
                work.wait()
        return sums, sent


def held(shared: Iterable[SharedParameter], role: str, stage: nn.Module) -> dict[str, nn.Parameter]:
    """The shared parameters that `stage` trains, by their names in the whole model."""
    own = dict(stage.named_parameters(remove_duplicate=False))
    copies = {item.name: own[item.name_in(role)] for item in shared}
    return {name: parameter for name, parameter in copies.items() if parameter.requires_grad}


def names_within(stage: nn.Module, copies: Mapping[str, nn.Parameter]) -> dict[str, str]:
    """The name in the whole model of each of `copies`, by the name that named_parameters() of its stage gives."""
    names = {id(parameter): name for name, parameter in copies.items()}
    return {name: names[id(parameter)] for name, parameter in stage.named_parameters() if id(parameter) in names}


def owners_values(
    shared: Iterable[SharedParameter], role: str, stage: nn.Module, owners: Mapping[str, Any]
) -> dict[str, Any]:
    """What a state of the OWNER has for the replicas in the stage of `role`, under all names that they have there."""
    own = dict(stage.named_parameters(remove_duplicate=False))
    return {
        name: owners[item.name_in(OWNER)]
        for item in shared
        for name, parameter in own.items()
        if parameter is own[item.name_in(role)]
    }


def _dense(gradients: Sequence[Tensor], parameter: nn.Parameter) -> Tensor:
    """The sum of `gradients` in one row, zeros when there are none."""
    if not gradients:
        return torch.zeros(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
    total, *others = (gradient.to_dense() if gradient.is_sparse else gradient for gradient in gradients)
    for other in others:
        total = total + other
    return total.reshape(-1)


def _sparse(gradients: Sequence[Tensor], parameter: nn.Parameter) -> Tensor:
    """The sum of `gradients`, without a row when there are none."""
    if not gradients:
        return no_rows(parameter)
    total, *others = gradients
    for other in others:
        total = total + other
    return total
