"""Parameter servers: workers push gradients and pull parameters, piece by piece, as soon as each exists.

    worker    backward: gradient of fc2 ─┐ fc1 ─┐ ...        pulls: new fc2, new fc1, ...
    server    sums fc2 ──────────────────┴ updates, answers; sums fc1 ...

`--servers one`: the last rank serves and does nothing else. `--servers all`: every rank is a worker and serves a part.
"""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stanza_compiler.rehearse.peers.session import Session, run

PIECE_BYTES = 4 << 20  # as BytePS parts tensors


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a parameter, kept by one server; `number` tells messages apart."""

    number: int
    name: str
    rows: slice
    server: int

    def of(self, tensor: Tensor) -> Tensor:
        return tensor.detach()[self.rows] if tensor.dim() else tensor.detach()


@dataclass(slots=True)
class Shard:
    """What one server keeps: pieces in the order in which their gradients come, and who updates them."""

    pieces: list[Piece]
    parameters: dict[int, nn.Parameter] = field(default_factory=dict)
    updater: Any = None

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """In original order, which a user's make_optimizer is promised."""
        for piece in sorted(self.pieces, key=lambda piece: piece.number):
            yield piece.name, self.parameters[piece.number]


class ParameterServer:
    """One rank: a worker, a server or both. Optimisers that look at single elements are exact on pieces."""

    def __init__(self, session: Session, *, servers: range) -> None:
        if dist.get_backend() != "gloo":
            raise RuntimeError("parameter servers are written for gloo")
        self._session = session
        self._parameters = session.trained_parameters()
        for parameter in self._parameters.values():
            parameter.data = parameter.data.contiguous()
        self._pieces = split(self._parameters, servers)
        # Two groups: a gradient and a parameter of one number never meet.
        self._up: Any = dist.new_group()
        self._down: Any = dist.new_group()
        self._shard: Shard | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._own: SimpleQueue[tuple[int, Tensor]] = SimpleQueue()
        if session.rank in servers:
            self._shard = self._make_shard()
            self._thread = ThreadPoolExecutor(1)
        self._pushes: list[Any] = []
        self._pulls: list[Any] = []
        if session.is_worker:
            for name, parameter in self._parameters.items():
                parameter.register_post_accumulate_grad_hook(partial(self._push, name))  # type: ignore[no-untyped-call]  # torch gives it no types

    def step(self, items: Sequence[int]) -> None:
        serving: Future[None] | None = None
        if self._thread is not None:
            serving = self._thread.submit(self._serve)
        if self._session.is_worker:
            self._session.backward(items, self._session.whole)
            for work in (*self._pushes, *self._pulls):
                work.wait()
            self._pushes, self._pulls = [], []
            self._session.whole.zero_grad(set_to_none=True)
        if serving is not None:
            serving.result()

    def state(self) -> dict[str, Tensor] | None:
        if self._session.rank:
            return None
        return {name: parameter.detach() for name, parameter in self._parameters.items()}

    def _push(self, name: str, parameter: Tensor) -> None:
        """Send a gradient to whom keeps it; what comes back may overwrite a parameter whose gradient is complete."""
        assert parameter.grad is not None
        if parameter.grad.is_sparse:
            raise RuntimeError(f"the gradient of {name} is sparse, these servers take dense ones")
        gradient = parameter.grad.contiguous()
        for piece in self._pieces[name]:
            if piece.server == self._session.rank:
                self._own.put((piece.number, piece.of(gradient)))
                continue
            self._pushes.append(dist.isend(piece.of(gradient), piece.server, group=self._up, tag=piece.number))
            self._pulls.append(dist.irecv(piece.of(parameter), piece.server, group=self._down, tag=piece.number))

    def _serve(self) -> None:
        """Sum, update and give out every piece of the shard."""
        assert self._shard is not None
        workers = [rank for rank in range(self._session.workers) if rank != self._session.rank]
        waiting = []
        for piece in self._shard.pieces:
            parameter = self._shard.parameters[piece.number]
            buffers = [torch.empty_like(parameter) for _ in workers]
            works: list[Any] = [
                dist.irecv(buffer, rank, group=self._up, tag=piece.number)
                for rank, buffer in zip(workers, buffers, strict=True)
            ]
            waiting.append((piece, parameter, buffers, works))
        own: dict[int, Tensor] = {}
        answers: list[Any] = []
        updater = self._shard.updater
        for piece, parameter, buffers, works in waiting:
            for work in works:
                work.wait()
            while self._session.is_worker and piece.number not in own:
                number, gradient = self._own.get()
                own[number] = gradient
            total = buffers[0] if buffers else own.pop(piece.number)
            for buffer in buffers[1:]:
                total += buffer
            if piece.number in own:
                total += own.pop(piece.number)
            parameter.grad = total
            updater.optimizer.step()
            parameter.grad = None
            answers += [dist.isend(parameter.detach(), rank, group=self._down, tag=piece.number) for rank in workers]
        if updater is not None and updater.scheduler is not None:
            updater.scheduler.step()
        for answer in answers:
            answer.wait()

    def _make_shard(self) -> Shard:
        """The pieces of this rank, as parameters in the model's own memory."""
        pieces = [
            piece
            for name in reversed(self._pieces)
            for piece in self._pieces[name]
            if piece.server == self._session.rank
        ]
        shard = Shard(pieces)
        for piece in pieces:
            shard.parameters[piece.number] = nn.Parameter(piece.of(self._parameters[piece.name]))
        shard.updater = self._session.updater(shard)
        return shard


def split(parameters: dict[str, nn.Parameter], servers: range) -> dict[str, list[Piece]]:
    """Each parameter's pieces of some rows, each with the server that has least so far."""
    load = dict.fromkeys(servers, 0)
    pieces: dict[str, list[Piece]] = {}
    number = 0
    for name, parameter in parameters.items():
        pieces[name] = []
        rows = parameter.size(0) if parameter.dim() else 1
        step = max(1, PIECE_BYTES * rows // max(parameter.nbytes, 1))
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            server = min(load, key=lambda rank: load[rank])
            load[server] += parameter.nbytes * (stop - start) // rows
            pieces[name].append(Piece(number, name, slice(start, stop), server))
            number += 1
    return pieces


def main(argv: Sequence[str]) -> None:
    flag, which, *others = argv
    assert flag == "--servers"
    if which == "one":
        run(
            lambda session: ParameterServer(session, servers=range(session.workers, session.size)),
            servers=1,
            argv=others,
        )
    else:
        run(lambda session: ParameterServer(session, servers=range(session.size)), argv=others)


if __name__ == "__main__":
    main(sys.argv[1:])
