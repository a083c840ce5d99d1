"""What the hosts of a sharded stage tell each other."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from .layout import split_evenly
from .transfer import post


class Peers:
    """The hosts that hold the columns of a stage; this one is number `place` of `count`.

    Every exchange is one message from each host to each other one. All hosts add in host order, so that what they
    compute alike is equal to the last bit.
    """

    def __init__(self, place: int, ranks: Sequence[int], group: dist.ProcessGroup | None) -> None:
        """`ranks` of all hosts in order; `group` is None where there is one host."""
        self.place, self.count = place, len(ranks)
        self.bytes_sent = 0
        self._ranks, self._group = tuple(ranks), group

    def columns(self, width: int) -> range:
        """The columns of `width` that are this host's: contiguous, the first ones' shares one larger."""
        return split_evenly(width, self.count)[self.place]

    def gather(self, own: Tensor, width: int) -> Tensor:
        """All `width` columns [..., width] from every host's [..., its columns]."""
        if self.count == 1:
            return own
        parts = [own.new_empty((*own.shape[:-1], len(columns))) for columns in split_evenly(width, self.count)]
        return torch.cat(self._exchange([own.contiguous()] * self.count, parts), -1)

    def scatter_sum(self, whole: Tensor) -> Tensor:
        """This host's columns of the sum over the hosts' [..., width]."""
        if self.count == 1:
            return whole
        pieces = [
            whole.narrow(-1, columns.start, len(columns)).contiguous()
            for columns in split_evenly(whole.shape[-1], self.count)
        ]
        first, *others = self._exchange(pieces, [torch.empty_like(pieces[self.place]) for _ in pieces])
        total = first.clone()
        for other in others:
            total += other
        return total

    def collect(self, own: Tensor) -> Tensor:
        """Every host's tensor of one shape, stacked in host order."""
        if self.count == 1:
            return own.unsqueeze(0)
        own = own.contiguous()
        return torch.stack(self._exchange([own] * self.count, [torch.empty_like(own) for _ in self._ranks]))

    def _exchange(self, there: Sequence[Tensor], here: list[Tensor]) -> list[Tensor]:
        """Send host j `there[j]`, fill `here[j]` with what it sends; the own one is `there` itself."""
        here[self.place] = there[self.place]
        operations = []
        for other, rank in enumerate(self._ranks):
            if other != self.place:
                operations.append(dist.P2POp(dist.isend, there[other], rank, group=self._group))
                operations.append(dist.P2POp(dist.irecv, here[other], rank, group=self._group))
                self.bytes_sent += there[other].nbytes
        others = ", ".join(str(rank) for other, rank in enumerate(self._ranks) if other != self.place)
        post(operations, f"columns to and from rank {others}").wait()
        return here


ALONE = Peers(0, (0,), None)
