"""A CONV rank's end of the boundary: tensors go up, their gradients come back."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from .groups import Groups
from .headers import header_of
from .inbox import Inbox
from .layout import Layout
from .transfer import Transfer, post
from .wires import Message, check_values, is_sender


class Outbox:
    """Sends one message a step to this rank's host, which may be this rank itself (`inbox`)."""

    def __init__(self, rank: int, layout: Layout, groups: Groups, message: Message, inbox: Inbox | None) -> None:
        self._rank, self._groups, self._message = rank, groups, message
        self._host = layout.host_of(rank)
        self._block = layout.block_of(self._host)
        self._inbox = inbox if self._host == rank else None
        self._sends: list[Transfer] = []
        self._receives: Transfer | None = None
        self._gradients: dict[int, Tensor] = {}

    @property
    def is_remote(self) -> bool:
        """Whether the host is another rank."""
        return self._inbox is None

    def send(self, step: int, values: Sequence[Tensor], samples: Sequence[int]) -> int:
        """Send this rank's part, post the receives of its gradients; return the bytes sent.

        `samples` are the part sizes of all CONV ranks; this rank's is not 0. Raises DisagreementError when a
        tensor is not of the agreed form.
        """
        wires = self._message.wires
        check_values(wires, values)
        plain = [value.detach().contiguous() for value in values]
        if self._inbox is not None:
            self._inbox.deliver(plain)
            return 0
        header = dist.P2POp(
            dist.isend, header_of(step, samples[self._rank], plain), self._host, group=self._groups.meta
        )
        sent = [index for index, wire in enumerate(wires) if is_sender(wire, self._rank, self._block, samples)]
        up = [dist.P2POp(dist.isend, plain[index], self._host, group=self._groups.up, tag=index) for index in sent]
        self._sends = [
            post([header], f"header to rank {self._host}"),
            post(up, f"boundary tensors to rank {self._host}"),
        ]
        # Of a replicated tensor that another rank sent, this rank's gradient is zero.
        self._gradients = {index: torch.zeros_like(plain[index]) for index in self._message.gradients}
        down = [
            dist.P2POp(dist.irecv, gradient, self._host, group=self._groups.down, tag=index)
            for index, gradient in self._gradients.items()
            if index in sent
        ]
        self._receives = post(down, f"boundary gradients from rank {self._host}")
        return sum(operation.tensor.nbytes for operation in up)

    def collect(self) -> dict[int, Tensor]:
        """The gradients of this rank's part by wire, once they are here."""
        if self._inbox is not None:
            return self._inbox.own_gradients()
        assert self._receives is not None
        self._receives.wait()
        return self._gradients

    def finish(self) -> None:
        """Wait until the sent tensors may be overwritten."""
        for transfer in self._sends:
            transfer.wait()
        self._sends, self._receives, self._gradients = [], None, {}
