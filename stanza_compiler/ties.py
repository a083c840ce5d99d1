"""Parameters that several ops use, and what they cost where a plan parts their users."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stanza_compiler.cuts import parameter_users
from stanza_compiler.figures import milliseconds, scaled
from stanza_compiler.network import Channel
from stanza_compiler.opgraph import Op, OpGraph, Parameter

# Users of one side that a note names.
NAMED_USERS = 3


@dataclass(frozen=True, slots=True)
class Tie:
    """A parameter and the ops that use it, at least two, in program order."""

    parameter: Parameter
    users: tuple[str, ...]

    def is_parted(self, fc_ops: frozenset[str]) -> bool:
        """Whether both roles use it, so that both hold a copy."""
        return 0 < sum(name in fc_ops for name in self.users) < len(self.users)


def ties(graph: OpGraph) -> tuple[Tie, ...]:
    """Every parameter that at least two ops use, in the graph's order."""
    return tuple(
        Tie(graph.parameter[name], tuple(users)) for name, users in parameter_users(graph).items() if len(users) > 1
    )


def parted_bytes(known: Iterable[Tie], fc_ops: frozenset[str]) -> dict[str, int]:
    """Gradient bytes that neither role reduces on its own, by the op that they would be ready after."""
    ready: dict[str, int] = {}
    for tie in known:
        if tie.parameter.trainable and tie.is_parted(fc_ops):
            ready[tie.users[0]] = ready.get(tie.users[0], 0) + tie.parameter.bytes
    return ready


def reduction_s(known: Iterable[Tie], fc_ops: frozenset[str], ring: Channel) -> float:
    """Seconds of summing the gradients of parted parameters over `ring`, all ranks: one message for each dtype."""
    parted = [tie.parameter for tie in known if tie.parameter.trainable and tie.is_parted(fc_ops)]
    dtypes = {parameter.dtype for parameter in parted}
    return len(dtypes) * ring.latency_s + sum(parameter.bytes for parameter in parted) * ring.s_per_byte


def parted_notes(graph: OpGraph, fc_ops: frozenset[str], ranks: int, ring: Channel) -> Iterator[str]:
    """What both roles hold, on `ranks` ranks in all: a note for all parameters that the same ops use."""
    parted: dict[tuple[tuple[str, ...], bool], list[Tie]] = {}
    for tie in ties(graph):
        if tie.is_parted(fc_ops):
            parted.setdefault((tie.users, tie.parameter.trainable), []).append(tie)
    for (users, trainable), tied in parted.items():
        conv, fc = ([graph.op[name] for name in users if (name in fc_ops) == is_fc] for is_fc in (False, True))
        size = sum(tie.parameter.bytes for tie in tied)
        names = ", ".join(tie.parameter.name for tie in tied)
        head = f"{names} ({scaled(size, 'B')}) is held by both roles, as the plan asks"
        users_text = f"CONV uses it in {_named(conv)}, FC in {_named(fc)}"
        if trainable:
            cost = (
                f"{scaled(2 * (ranks - 1) * size, 'B')} and {milliseconds(reduction_s(tied, fc_ops, ring))} ms a step"
            )
            yield f"{head}: {users_text}; its gradient is summed over all {ranks} ranks, {cost}"
        else:
            yield f"{head}: {users_text}; it is frozen, so that nothing of it is sent"


def _named(ops: list[Op]) -> str:
    names = [f"{op.name} ({op.source})" if op.source else op.name for op in ops[:NAMED_USERS]]
    more = [f"{len(ops) - NAMED_USERS} more"] if len(ops) > NAMED_USERS else []
    return " and ".join([", ".join(names), *more])
