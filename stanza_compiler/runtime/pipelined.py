"""One step of the order conv-fc: every rank does what its schedule says."""

from collections.abc import Sequence

from .conv_side import ConvSide
from .fc_side import FcSide
from .routes import Route
from .schedule import Kind, schedule
from .stopwatch import Stopwatch


def run_pipelined(
    conv: ConvSide | None,
    fc: FcSide | None,
    routes: Sequence[Route],
    step: int,
    *,
    items: Sequence[Sequence[int]],
    samples: Sequence[Sequence[int]],
    watch: Stopwatch,
) -> int:
    """Go forward and backward through all micro-batches; return the bytes sent up.

    By micro-batch `items` are this rank's, `samples` the sizes of all CONV ranks' parts.
    """
    conv_route, fc_route = routes
    sent = 0
    actions = schedule(
        len(samples),
        conv=conv is not None,
        host=fc is not None,
        count_first=fc is not None and fc.count_needs_targets,
    )
    for kind, micro in actions:
        now = samples[micro]
        for side in (conv, fc):
            if side is not None:
                side.turn_to(micro)
        if conv is not None:
            match kind:
                case Kind.FORWARD:
                    conv.load(step, items[micro])
                    conv.forward(conv_route, step, watch)
                case Kind.SEND:
                    sent += conv.send(fc_route, step, now)
                case Kind.COLLECT:
                    conv.collect(fc_route, watch)
                case Kind.BACKWARD:
                    conv.backward(conv_route, now, watch)
        if fc is not None:
            match kind:
                case Kind.EXPECT:
                    fc.expect(fc_route, step, now)
                case Kind.RECEIVE:
                    fc.receive(fc_route, step, now, watch)
                case Kind.FC_FORWARD:
                    fc.forward(fc_route, watch)
                case Kind.COUNT:
                    fc.count([sum(sizes) for sizes in zip(*samples, strict=True)])
                case Kind.FC_BACKWARD:
                    fc.backward(fc_route, watch)
                case Kind.LATE:
                    fc.compute_late(watch)
    return sent
