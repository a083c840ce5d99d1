"""Parameters that several ops use, and what they cost where a plan parts their users."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stanza_compiler.cuts import parameter_users
from stanza_compiler.figures import milliseconds, scaled
from stanza_compiler.gradients import Gradient, parameter_gradients
from stanza_compiler.network import Channel
from stanza_compiler.opgraph import Op, OpGraph, Parameter

# Users of one side that a note names.
NAMED_USERS = 3


@dataclass(frozen=True, slots=True)
class Tie:
    """A parameter and the ops that use it, at least two, in program order; a frozen one's gradient is empty."""

    parameter: Parameter
    users: tuple[str, ...]
    gradient: Gradient

    def is_parted(self, fc_ops: frozenset[str]) -> bool:
        """Whether both roles use it, so that both hold a copy."""
        return 0 < sum(name in fc_ops for name in self.users) < len(self.users)


def ties(graph: OpGraph) -> tuple[Tie, ...]:
    """Every parameter that at least two ops use, in the graph's order."""
    known = parameter_gradients(graph)
    return tuple(
        Tie(graph.parameter[name], tuple(users), known.get(name, Gradient()))
        for name, users in parameter_users(graph).items()
        if len(users) > 1
    )


def parted(known: Iterable[Tie], fc_ops: frozenset[str]) -> tuple[Tie, ...]:
    """The trained parameters whose gradient neither role reduces on its own."""
    return tuple(tie for tie in known if tie.parameter.trainable and tie.is_parted(fc_ops))


def reduction(shared: Iterable[Tie], ranks: int, samples: int, ring: Channel) -> tuple[float, float]:
    """Seconds, and bytes as a ring carries them, of a sum over all `ranks` of `samples` samples: a message by dtype."""
    shared = tuple(shared)
    ring_bytes = sum(tie.gradient.ring_bytes(ranks, samples) for tie in shared)
    dtypes = {tie.parameter.dtype for tie in shared}
    return len(dtypes) * ring.latency_s + ring_bytes * ring.s_per_byte, ring_bytes


def parted_notes(graph: OpGraph, fc_ops: frozenset[str], ranks: int, samples: int, ring: Channel) -> Iterator[str]:
    """What both roles hold, on `ranks` ranks in all: a note for all parameters that the same ops use."""
    found: dict[tuple[tuple[str, ...], bool], list[Tie]] = {}
    for tie in ties(graph):
        if tie.is_parted(fc_ops):
            found.setdefault((tie.users, tie.parameter.trainable), []).append(tie)
    for (users, trainable), tied in found.items():
        conv, fc = ([graph.op[name] for name in users if (name in fc_ops) == is_fc] for is_fc in (False, True))
        size = sum(tie.parameter.bytes for tie in tied)
        names = ", ".join(tie.parameter.name for tie in tied)
        head = f"{names} ({scaled(size, 'B')}) is held by both roles, as the plan asks"
        users_text = f"CONV uses it in {_named(conv)}, FC in {_named(fc)}"
        if trainable:
            seconds, ring_bytes = reduction(tied, ranks, samples, ring)
            cost = f"{scaled(2 * (ranks - 1) * ring_bytes, 'B')} and {milliseconds(seconds)} ms a step"
            yield f"{head}: {users_text}; its gradient is summed over all {ranks} ranks, {cost}"
        else:
            yield f"{head}: {users_text}; it is frozen, so that nothing of it is sent"


def _named(ops: list[Op]) -> str:
    names = [f"{op.name} ({op.source})" if op.source else op.name for op in ops[:NAMED_USERS]]
    more = [f"{len(ops) - NAMED_USERS} more"] if len(ops) > NAMED_USERS else []
    return " and ".join([", ".join(names), *more])
