"""Waits for other ranks whose failure names the edge."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist

from .errors import EdgeError


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Turn the failure of a wait into an EdgeError that says `what` was waited for."""
    try:
        yield
    except RuntimeError as error:
        raise EdgeError(f"{what}: {' '.join(str(error).split())}") from error


@dataclass(frozen=True, slots=True)
class Transfer:
    """Messages under way between two ranks; `edge` says what and whom for error messages."""

    works: Sequence[dist.Work]
    edge: str

    def wait(self) -> None:
        """Return when they are through.

        Raises EdgeError when the peer ended or the group's timeout passed.
        """
        for work in self.works:
            with waiting_for(self.edge):
                work.wait()


def post(operations: list[dist.P2POp], edge: str) -> Transfer:
    """Start sends and receives in the given order.

    Raises EdgeError when a peer has already ended.
    """
    with waiting_for(edge):
        return Transfer(dist.batch_isend_irecv(operations) if operations else (), edge)
