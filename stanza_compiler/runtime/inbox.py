"""A host's end of the boundary: the parts of its CONV ranks come in, slices of the gradient go back."""

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from .assembly import Assembly, Delivery, Leaf
from .groups import Groups
from .headers import empty_header, read_header
from .layout import Layout
from .transfer import Transfer, post
from .wires import Message, is_sender


class Inbox:
    """Receives one message a step from every CONV rank of this host's block whose part is not empty.

        rank 0 ──┐                               ┌──> dH[0:6]   as soon as dH exists
        rank 1 ──┼──> H = cat in rank order ──> dH ──> dH[6:11]
        (own) ───┘

    `receive_s` is the time from the first header to the last tensor of this step, `turnaround_s` that from there
    until the last slice is on its way.
    """

    def __init__(self, rank: int, layout: Layout, groups: Groups, message: Message, device: torch.device) -> None:
        self._rank, self._groups, self._message, self._device = rank, groups, message, device
        self._block = layout.block_of(rank)
        self._early = device.type == "cpu"  # nccl wants sends in the same order on every rank
        self._own: list[Tensor] = []
        self._own_gradients: dict[int, Tensor] = {}
        self._unreturned: dict[int, Leaf] = {}
        self._sends: list[Transfer] = []
        self._bytes_sent = 0
        self._received_at = 0.0
        self.receive_s = 0.0
        self.turnaround_s = 0.0

    def deliver(self, values: list[Tensor]) -> None:
        """Take the part of the CONV worker on this same rank."""
        self._own = values

    def receive(self, step: int, samples: Sequence[int]) -> list[Delivery]:
        """Wait for the parts of all ranks; `samples` are the part sizes of all CONV ranks.

        Raises DisagreementError when a rank is at another step or sends another number of samples, EdgeError when
        one is lost.
        """
        ranks = [rank for rank in self._block if samples[rank]]
        if not ranks:
            return []
        assembly = Assembly(self._message, ranks, samples, self._device)
        self._fill(assembly, step, ranks, samples)
        deliveries = assembly.join()
        self._unreturned = {id(leaf): leaf for leaf in assembly.leaves if leaf.tensor.requires_grad}
        if self._early:
            for leaf in self._unreturned.values():
                self._return_when_ready(leaf)
        return deliveries

    def return_rest(self) -> None:
        """Send back what backward left out: zeros for a tensor without gradient, everything under nccl."""
        operations = []
        for leaf in self._unreturned.values():
            gradient = leaf.tensor.grad
            operations += self._returns(leaf, torch.zeros_like(leaf.tensor) if gradient is None else gradient)
        self._unreturned.clear()
        self._send_back(operations)

    def own_gradients(self) -> dict[int, Tensor]:
        """The gradients, by wire, of the part of the CONV worker on this same rank."""
        return self._own_gradients

    def finish(self) -> int:
        """Wait until all slices have left; return the bytes sent in this step."""
        for transfer in self._sends:
            transfer.wait()
        sent = self._bytes_sent
        self._sends, self._own, self._own_gradients, self._bytes_sent = [], [], {}, 0
        return sent

    def _fill(self, assembly: Assembly, step: int, ranks: list[int], samples: Sequence[int]) -> None:
        """Receive each part as soon as its header says how large it is."""
        headers = {rank: empty_header(self._message) for rank in ranks if rank != self._rank}
        arrivals = {
            rank: post([dist.P2POp(dist.irecv, header, rank, group=self._groups.meta)], f"header from rank {rank}")
            for rank, header in headers.items()
        }
        transfers, start = [], None
        for rank in ranks:
            if rank == self._rank:
                self._fill_own(assembly)
                continue
            arrivals[rank].wait()
            start = start or time.perf_counter()
            shapes = read_header(headers[rank], self._message, rank=rank, step=step, samples=samples[rank])
            operations = [
                dist.P2POp(dist.irecv, slot, rank, group=self._groups.up, tag=index)
                for index, slot in enumerate(assembly.slots(rank, shapes))
                if is_sender(self._message.wires[index], rank, self._block, samples)
            ]
            transfers.append(post(operations, f"boundary tensors from rank {rank}"))
        for transfer in transfers:
            transfer.wait()
        self._received_at = time.perf_counter()
        self.receive_s = self._received_at - start if start else 0.0

    def _fill_own(self, assembly: Assembly) -> None:
        slots = assembly.slots(self._rank, [tuple(value.shape) for value in self._own])
        for slot, value in zip(slots, self._own, strict=True):
            slot.copy_(value)

    def _return_when_ready(self, leaf: Leaf) -> None:
        def return_now(tensor: Tensor) -> None:
            assert tensor.grad is not None
            del self._unreturned[id(leaf)]
            self._send_back(self._returns(leaf, tensor.grad))

        leaf.tensor.register_post_accumulate_grad_hook(return_now)  # type: ignore[no-untyped-call]  # torch's gap

    def _returns(self, leaf: Leaf, gradient: Tensor) -> list[dist.P2POp]:
        operations = []
        for rank, piece in leaf.pieces(gradient):
            if rank == self._rank:
                self._own_gradients[leaf.wire] = piece
            else:
                down = self._groups.down
                operations.append(dist.P2POp(dist.isend, piece.contiguous(), rank, group=down, tag=leaf.wire))
        return operations

    def _send_back(self, operations: list[dist.P2POp]) -> None:
        self._bytes_sent += sum(operation.tensor.nbytes for operation in operations)
        if operations:
            self._sends.append(post(operations, "boundary gradients to CONV ranks"))
            self.turnaround_s = time.perf_counter() - self._received_at
