"""What every rank has to see alike before tensors move: gloo silently mixes dtypes and lengths."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from .errors import DisagreementError
from .transfer import waiting_for
from .wires import Message


def agree(facts: Mapping[str, Any], message: Message | None, group: dist.ProcessGroup) -> Message | None:
    """The one message form of all its senders; `message` is None on the other ranks.

    `facts` are settings that have to be the same everywhere. Raises DisagreementError naming rank and tensor.
    """
    cards: list[Any] = [None] * dist.get_world_size(group)
    with waiting_for("agreement of all ranks"):
        dist.all_gather_object(cards, (dict(facts), message), group=group)
    first_facts, _ = cards[0]
    first: tuple[int, Message] | None = None
    for rank, (other_facts, other) in enumerate(cards):
        for name, value in first_facts.items():
            if other_facts[name] != value:
                raise DisagreementError(f"rank {rank} has {name} {other_facts[name]}, rank 0 has {value}")
        if other is not None:
            first = first or (rank, other)
            _compare(rank, other, *first)
    return first[1] if first is not None else None


def _compare(rank: int, other: Message, first_rank: int, first: Message) -> None:
    for found, expected in zip(other.wires, first.wires, strict=False):
        if found != expected:
            raise DisagreementError(f"rank {rank} would send {found}, rank {first_rank} {expected}")
    if len(other.wires) != len(first.wires) or other.targets != first.targets:
        raise DisagreementError(f"rank {rank} has targets of form {other.targets}, rank {first_rank} {first.targets}")


def broadcast_length(length: int | None, group: dist.ProcessGroup) -> int | None:
    """The length of rank 0's dataset, on every rank."""
    held: list[Any] = [length]
    with waiting_for("length of the dataset from rank 0"):
        dist.broadcast_object_list(held, src=0, group=group)
    shared: int | None = held[0]
    return shared
