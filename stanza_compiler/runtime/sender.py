"""The end of a message at which tensors leave and their gradients come back."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .codecs import decode, encode, lifting, payload_dtype, payload_shape
from .groups import Channel
from .headers import header_of
from .receiver import Receiver
from .standin import REHEARSAL
from .transfer import Transfer, post
from .wires import Message, Wire, check_targets, check_values


class Sender:
    """Sends one part of the message a step to each of its peers: a CONV rank to its host, or a host to its CONV ranks.

    A peer that is this same rank gets its part through `local`, the other end, and as it is; what goes to others is
    coded as `codec` says.
    """

    def __init__(
        self, rank: int, channel: Channel, message: Message, local: Receiver | None, codec: str = "fp32"
    ) -> None:
        self._rank, self._channel, self._message, self._local = rank, channel, message, local
        self._codec, self._coded = codec, message.coded(codec)
        self._lift = 1.0
        self._sends: list[Transfer] = []
        self._receives: dict[int, Transfer] = {}
        self._gradients: dict[int, dict[int, Tensor]] = {}
        self._shapes: dict[int, list[torch.Size]] = {}

    def check_targets(self, template: Any) -> None:
        """Raise DisagreementError when targets have another form than was agreed on, or other values beside tensors."""
        check_targets(self._message.targets, template)

    def send(
        self,
        step: int,
        values: Sequence[Tensor],
        *,
        peer: int,
        samples: int,
        of: int,
        is_sent: Callable[[Wire], bool] = lambda wire: True,
    ) -> int:
        """Send `peer` the tensors of `samples` samples of a batch `of` so many; return the bytes sent.

        Makes ready to receive their gradients. Tensors for which not `is_sent(wire)` come from another rank, and so
        their gradients go there. No gradients follow in the rehearsal. Raises DisagreementError when a tensor is not of
        the agreed form.
        """
        wires = self._message.wires
        check_values(wires, values)
        plain = [value.detach().contiguous() for value in values]
        if peer == self._rank:
            assert self._local is not None
            self._local.deliver(plain)
            return 0
        header = header_of(step, self._channel.micro, samples, plain)
        self._lift = lifting(of)
        payloads = [
            encode(self._codec, value, wires[index].batch_axis) if index in self._coded else value
            for index, value in enumerate(plain)
        ]
        first = dist.P2POp(dist.isend, header, peer, group=self._channel.headers, tag=self._channel.header_tag)
        sent = [index for index, wire in enumerate(wires) if is_sent(wire)]
        there = [
            dist.P2POp(dist.isend, payloads[index], peer, group=self._channel.there, tag=self._channel.tag(index))
            for index in sent
        ]
        self._sends += [
            post([first], f"header to rank {peer}"),
            post(there, f"boundary tensors to rank {peer}"),
        ]
        if step != REHEARSAL:
            gradients = {index: self._room(index, plain[index]) for index in self._message.gradients}
            back = [
                dist.P2POp(dist.irecv, gradient, peer, group=self._channel.back, tag=self._channel.tag(index))
                for index, gradient in gradients.items()
                if index in sent
            ]
            self._gradients[peer] = gradients
            self._shapes[peer] = [value.shape for value in plain]
            self._receives[peer] = post(back, f"boundary gradients from rank {peer}")
        return sum(operation.tensor.nbytes for operation in there)

    def collect(self, peer: int) -> dict[int, Tensor]:
        """The gradients of the part of `peer` by wire, once they are here."""
        if peer == self._rank:
            assert self._local is not None
            return self._local.own_gradients()
        self._receives[peer].wait()
        gradients = dict(self._gradients[peer])
        for index in self._coded.keys() & gradients.keys():
            shape = self._shapes[peer][index]
            gradients[index] = decode(self._codec, gradients[index], self._coded[index], shape, self._lift)
        return gradients

    def _room(self, index: int, value: Tensor) -> Tensor:
        """Where the gradient of a tensor comes, zero where none comes."""
        if index not in self._coded:
            return torch.zeros_like(value)
        shape = payload_shape(self._codec, value.shape, self._message.wires[index].batch_axis)
        return torch.zeros(shape, dtype=payload_dtype(self._codec), device=value.device)

    def finish(self) -> None:
        """Wait until the sent tensors may be overwritten."""
        for transfer in self._sends:
            transfer.wait()
        self._sends, self._receives, self._gradients = [], {}, {}
