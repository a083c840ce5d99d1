"""The end of a message at which tensors arrive and from which their gradients go back."""

import time
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from .codecs import decode, encode, lifting, payload_dtype, payload_shape
from .groups import Channel
from .headers import empty_header, read_header
from .shares import Shared
from .transfer import Transfer, post
from .wires import Message, Wire


class Receiver:
    """Receives one part of the message a step from each of its peers: a host from its CONV ranks, or one from its host.

        rank 0 ──┐                               ┌──> dH[0:6]   as soon as dH exists
        rank 1 ──┼──> H = cat in rank order ──> dH ──> dH[6:11]
        (own) ───┘

    What comes from other ranks, and goes back to them, is coded as `codec` says.
    """

    def __init__(
        self, rank: int, channel: Channel, message: Message, device: torch.device, codec: str = "fp32"
    ) -> None:
        self.message = message
        self._codec, self._coded = codec, message.coded(codec)
        self._lift = 1.0
        self._rank, self._channel = rank, channel
        self._early = device.type == "cpu"  # nccl wants sends in the same order on every rank
        self._own: list[Tensor] = []
        self._own_gradients: dict[int, Tensor] = {}
        self._unreturned: dict[int, Shared] = {}
        self._sends: list[Transfer] = []
        self._bytes_sent = 0
        self._received_at = 0.0
        self.started_at: float | None = None
        self.returned_at: float | None = None

    @property
    def receive_s(self) -> float:
        """Seconds from the first header to the last tensor of this step; 0 when nothing came from another rank."""
        return self._received_at - self.started_at if self.started_at is not None else 0.0

    def deliver(self, values: list[Tensor]) -> None:
        """Take the part that comes from this same rank."""
        self._own = values

    def receive_own(self, slots: Callable[[int, Sequence[tuple[int, ...]]], list[Tensor]]) -> None:
        """Copy the part that this same rank delivered."""
        shapes = [tuple(value.shape) for value in self._own]
        for slot, value in zip(slots(self._rank, shapes), self._own, strict=True):
            slot.copy_(value)

    def receive(
        self,
        step: int,
        samples: Mapping[int, int],
        *,
        of: int,
        slots: Callable[[int, Sequence[tuple[int, ...]]], list[Tensor]],
        is_sent: Callable[[Wire, int], bool] = lambda wire, peer: True,
    ) -> None:
        """Wait for the parts of all peers with `samples`, each received as soon as its header says how large it is.

        `of` are the samples of the whole batch.
        `slots(peer, shapes)` gives room for a part; of wires for which not `is_sent(wire, peer)` nothing comes. Raises
        DisagreementError when a peer is at another step or sends another number of samples, EdgeError when one is
        lost.
        """
        self.started_at = self.returned_at = None
        headers = {peer: empty_header(self.message) for peer in samples if peer != self._rank}
        meta, tag = self._channel.headers, self._channel.header_tag
        arrivals = {
            peer: post([dist.P2POp(dist.irecv, header, peer, group=meta, tag=tag)], f"header from rank {peer}")
            for peer, header in headers.items()
        }
        transfers = []
        coded: list[tuple[int, Tensor, Tensor]] = []
        self._lift = lifting(of)
        for peer in samples:
            if peer == self._rank:
                self.receive_own(slots)
                continue
            arrivals[peer].wait()
            self.started_at = self.started_at or time.perf_counter()
            shapes = read_header(
                headers[peer],
                self.message,
                rank=peer,
                step=step,
                micro=self._channel.micro,
                samples=samples[peer],
            )
            operations = []
            for index, slot in enumerate(slots(peer, shapes)):
                if is_sent(self.message.wires[index], peer):
                    room = slot
                    if index in self._coded:
                        form = payload_shape(self._codec, slot.shape, self.message.wires[index].batch_axis)
                        room = torch.empty(form, dtype=payload_dtype(self._codec), device=slot.device)
                        coded.append((index, slot, room))
                    there, place = self._channel.there, self._channel.tag(index)
                    operations.append(dist.P2POp(dist.irecv, room, peer, group=there, tag=place))
            transfers.append(post(operations, f"boundary tensors from rank {peer}"))
        for transfer in transfers:
            transfer.wait()
        for index, slot, room in coded:
            slot.copy_(decode(self._codec, room, self._coded[index], slot.shape))
        self._received_at = time.perf_counter()

    def expect(self, leaves: Sequence[Shared]) -> None:
        """Send the gradients of these received tensors back, each as soon as it exists; the rest in `return_rest`."""
        self._unreturned = {id(leaf): leaf for leaf in leaves if leaf.tensor.requires_grad}
        if self._early:
            for leaf in self._unreturned.values():
                self._return_when_ready(leaf)

    def return_rest(self) -> None:
        """Send back what backward left out: zeros for a tensor without gradient, everything under nccl."""
        operations = []
        for leaf in self._unreturned.values():
            gradient = leaf.tensor.grad
            operations += self._returns(leaf, torch.zeros_like(leaf.tensor) if gradient is None else gradient)
        self._unreturned.clear()
        self._send_back(operations)

    def own_gradients(self) -> dict[int, Tensor]:
        """The gradients, by wire, of the part that came from this same rank."""
        return self._own_gradients

    def finish(self) -> int:
        """Wait until all gradients have left; return the bytes sent in this step."""
        for transfer in self._sends:
            transfer.wait()
        sent = self._bytes_sent
        self._sends, self._own, self._own_gradients, self._bytes_sent = [], [], {}, 0
        return sent

    def _return_when_ready(self, leaf: Shared) -> None:
        key = id(leaf)  # a hook that held the leaf itself would keep its tensor for good

        def return_now(tensor: Tensor) -> None:
            assert tensor.grad is not None
            self._send_back(self._returns(self._unreturned.pop(key), tensor.grad))

        leaf.tensor.register_post_accumulate_grad_hook(return_now)  # type: ignore[no-untyped-call]  # torch's gap

    def _returns(self, leaf: Shared, gradient: Tensor) -> list[dist.P2POp]:
        operations = []
        payload = encode(self._codec, gradient, leaf.axis, self._lift) if leaf.wire in self._coded else gradient
        for (peer, piece), (_, coded) in zip(leaf.pieces(gradient), leaf.pieces(payload), strict=True):
            if peer == self._rank:
                self._own_gradients[leaf.wire] = piece
            else:
                back, place = self._channel.back, self._channel.tag(leaf.wire)
                operations.append(dist.P2POp(dist.isend, coded.contiguous(), peer, group=back, tag=place))
        return operations

    def _send_back(self, operations: list[dist.P2POp]) -> None:
        self._bytes_sent += sum(operation.tensor.nbytes for operation in operations)
        if operations:
            peers = ", ".join(str(peer) for peer in sorted({operation.peer for operation in operations}))
            self._sends.append(post(operations, f"boundary gradients to rank {peers}"))
            self.returned_at = time.perf_counter()
