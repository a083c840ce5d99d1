"""The order in which a rank does its part of a step that is cut into micro-batches."""

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """What a rank can do with one micro-batch, or once a step."""

    FORWARD = "CONV forward on this rank's items"
    SEND = "what FC takes leaves for the host; make room for its gradients"
    EXPECT = "make room for what the ranks of the block send: it may travel while this rank computes"
    RECEIVE = "wait for it"
    FC_FORWARD = "FC forward, to the loss"
    COUNT = "learn what the loss of the whole step is divided by"
    FC_BACKWARD = "FC backward; the gradients of what was received leave"
    COLLECT = "wait for the gradients of what was sent"
    BACKWARD = "CONV backward"
    LATE = "the weight gradients that FC backward has left"


class Action(NamedTuple):
    """One thing to do, with micro-batch `micro`; 0 for what is done once a step."""

    kind: Kind
    micro: int = 0


def schedule(micro_batches: int, *, conv: bool, host: bool, count_first: bool) -> Iterator[Action]:
    """The actions of a rank that trains CONV, hosts FC, or both.

    CONV goes forward through all micro-batches, then backward through all. A host takes each forward and backward as it
    comes; with `count_first`, where only targets say what the loss is divided by, it goes backward when it has seen
    all. Who does both is one micro-batch ahead with CONV: what the others send travels meanwhile.

        conv    F0 F1 F2 .. B0 B1 B2            both    F0 F1 f0 b0 F2 f1 b1 f2 b2 B0 B1 B2 late
        host    .. f0 b0 f1 b1 f2 b2 late       both, count_first    F0 F1 f0 F2 f1 f2 b0 b1 b2 B0 B1 B2 late
    """
    numbers = range(micro_batches)
    if host:
        yield from (Action(Kind.EXPECT, micro) for micro in numbers)
        if not count_first:
            yield Action(Kind.COUNT)
    for micro in range(micro_batches + 1):
        if conv and micro < micro_batches:
            yield Action(Kind.FORWARD, micro)
            yield Action(Kind.SEND, micro)
        if host and micro > 0:
            yield Action(Kind.RECEIVE, micro - 1)
            yield Action(Kind.FC_FORWARD, micro - 1)
            if not count_first:
                yield Action(Kind.FC_BACKWARD, micro - 1)
    if host and count_first:
        yield Action(Kind.COUNT)
        yield from (Action(Kind.FC_BACKWARD, micro) for micro in numbers)
    if conv:
        for micro in numbers:
            yield Action(Kind.COLLECT, micro)
            yield Action(Kind.BACKWARD, micro)
    if host:
        yield Action(Kind.LATE)
