"""The cheapest legal cut under one allocation, as a mixed-integer linear program.

One binary per group of ops: 1 in FC. A tensor's crossing is at least that of a reader less that of its maker.
Each maximum in the cost model becomes a variable that is at least each of its forms; minimising makes it equal.
"""

from collections.abc import Callable
from dataclasses import replace

from stanza_compiler.cost_model import Costs
from stanza_compiler.cuts import Cuts, members
from stanza_compiler.dataflow import Tensor
from stanza_compiler.linear import ONE, Form, LinearProgram, sum_of
from stanza_compiler.network import Channel

# What `at_most_s` is scaled to, so that HiGHS's absolute tolerances of 1e-6 are far below 1e-9 of it.
UNITS = 1e6

# By how much a cut may be slower to win by fewer bytes; "exact" allows 1e-9.
TIE = 5e-10


def cheapest_cut(costs: Costs, cuts: Cuts, *, at_most_s: float) -> int | None:
    """FC groups of the legal cut with the least iteration time, None when all take more than `at_most_s`."""
    program = _Program(scaled(costs, UNITS / at_most_s), cuts)
    iteration = program.iteration()
    program.require(sum_of((UNITS * (1 + TIE), {ONE: 1.0}), (-1.0, iteration)))
    return program.cheapest(iteration)


def fewest_bytes(costs: Costs, cuts: Cuts, *, at_most_s: float) -> int | None:
    """FC groups of the cut with fewest boundary bytes, then fewest FC ops, of those within `at_most_s`."""
    program = _Program(scaled(costs, UNITS / at_most_s), cuts)
    program.require(sum_of((UNITS * (1 + TIE), {ONE: 1.0}), (-1.0, program.iteration())))
    return program.cheapest(program.boundary())


class _Program(LinearProgram):
    """Variables and rows for one allocation: the legal cuts first, then what the cost model adds."""

    def __init__(self, costs: Costs, cuts: Cuts) -> None:
        super().__init__()
        self._costs, self._cuts = costs, cuts
        for group in range(len(cuts.groups)):
            self.variable(cuts.fc_only >> group & 1, 1 - (cuts.conv_only >> group & 1), integer=True)
        for earlier, later in cuts.edges:
            self.require(sum_of((1.0, self._group(later)), (-1.0, self._group(earlier))))
        # Where one side has work, it has the last, or the first, of some chain of groups with work.
        work = list(members(cuts.work))
        last = [self._group(number) for number in work if cuts.later[number] & cuts.work == 1 << number]
        first = [self._group(number) for number in work if cuts.earlier[number] & cuts.work == 1 << number]
        self.require(sum_of((-1.0, {ONE: 1.0}), *((1.0, fc) for fc in last)))
        self.require(sum_of((len(first) - 1.0, {ONE: 1.0}), *((-1.0, fc) for fc in first)))
        self._crossings = [(tensor, self._crossing(tensor)) for tensor in costs.tensors]

    def cheapest(self, objective: Form) -> int | None:
        """The groups in FC where `objective` is least, None when the rows leave no cut."""
        values = self.least(objective)
        if values is None:
            return None
        return sum(1 << group for group in range(len(self._cuts.groups)) if values[group] > 0.5)

    def iteration(self) -> Form:
        """`cost_model.price_cut`."""
        costs = self._costs
        sides = [(op, self._conv(op.name), self._fc(op.name)) for op in costs.ops]
        fc_bytes = sum_of(*((op.fc_ring_bytes, fc) for op, _, fc in sides))
        conv_updated = sum_of(*((op.conv_updated_bytes, conv) for op, conv, _ in sides))
        fc_updated = sum_of(*((op.fc_updated_bytes, fc) for op, _, fc in sides))
        forward = sum_of(*((op.conv_forward_s, conv) for op, conv, _ in sides))
        fc_compute = sum_of(*((op.fc_forward_s + op.fc_backward_s - op.fc_late_s, fc) for op, _, fc in sides))
        late = sum_of(*((op.fc_late_s, fc) for op, _, fc in sides))
        conv_backward = sum_of(*((op.conv_backward_s, conv) for op, conv, _ in sides))
        conv_trains = self.most([conv for op, conv, _ in sides if op.trains])
        fc_trains = self.most([fc for op, _, fc in sides if op.trains])
        fc_ring = sum_of((costs.fc_ring.s_per_byte, fc_bytes), (costs.fc_ring.latency_s, fc_trains))
        conv_optimizer = sum_of((costs.optimizer_s_per_byte, conv_updated))
        fc_optimizer = sum_of((costs.optimizer_s_per_byte, fc_updated))
        dedicated = costs.allocation.placement == "dedicated"
        conv_ring = sum_of(
            (costs.conv_ring.latency_s, conv_trains),
            (1.0, exposed(self, costs, self._conv, {} if dedicated else fc_ring)),
        )
        if dedicated:
            conv_end = sum_of((1.0, conv_backward), (1.0, conv_ring), (1.0, conv_optimizer))
            end = self.most([conv_end, sum_of((1.0, late), (1.0, fc_ring), (1.0, fc_optimizer))])
        else:
            meanwhile = self.most([conv_ring, late])
            end = sum_of((1.0, conv_backward), (1.0, meanwhile), (1.0, conv_optimizer), (1.0, fc_optimizer))
        return sum_of((1.0, forward), (1.0, self._up()), (1.0, fc_compute), (1.0, self._down()), (1.0, end))

    def boundary(self) -> Form:
        """Bytes that cross for one sample on one rank, then FC ops by a weight that never outdoes a byte."""
        largest = max((tensor.value.bytes_at(1) for tensor, _ in self._crossings), default=0.0) or 1.0
        boundary = sum_of(
            *((UNITS * tensor.value.bytes_at(1) / largest, crossing) for tensor, crossing in self._crossings)
        )
        return sum_of((1.0, boundary), *((1e-3 / len(self._costs.ops), self._fc(op.name)) for op in self._costs.ops))

    def _group(self, number: int) -> Form:
        """1 where the group is in FC, a variable unless it can only be on one side."""
        if self._cuts.conv_only >> number & 1:
            return {}
        return {ONE: 1.0} if self._cuts.fc_only >> number & 1 else {number: 1.0}

    def _fc(self, op: str) -> Form:
        return self._group(self._cuts.group[op])

    def _conv(self, op: str | None) -> Form:
        return sum_of((1.0, {ONE: 1.0}), (-1.0, {} if op is None else self._fc(op)))

    def _crossing(self, tensor: Tensor) -> Form:
        """1 where the tensor crosses: made in CONV, needed in FC."""
        needs = [{ONE: 1.0}] if tensor.is_output else []
        needs += [self._group(number) for number in sorted({self._cuts.group[name] for name in tensor.readers})]
        return self.most(
            [{}, *(sum_of((1.0, need), (1.0, self._conv(tensor.maker)), (-1.0, {ONE: 1.0})) for need in needs)]
        )

    def _up(self) -> Form:
        """Latency if anything is sent, and the busiest link's load."""
        costs = self._costs
        sent = [crossing for tensor, crossing in self._crossings if costs.traffic.payload_bytes(tensor.value)]
        if costs.target_bytes and costs.links:
            sent = [{ONE: 1.0}]
        loads = [
            sum_of(
                (link.samples * costs.target_bytes * link.s_per_byte, {ONE: 1.0}),
                *((costs.up_s(link, tensor), crossing) for tensor, crossing in self._crossings),
            )
            for link in costs.links
        ]
        return sum_of((costs.latency_s, self.most(sent)), (1.0, self.most(loads)))

    def _down(self) -> Form:
        costs = self._costs
        returned = [(tensor, crossing) for tensor, crossing in self._crossings if tensor.value.requires_grad]
        sent = [crossing for tensor, crossing in returned if costs.traffic.payload_bytes(tensor.value)]
        loads = [
            sum_of(*((costs.down_s(link, tensor), crossing) for tensor, crossing in returned)) for link in costs.links
        ]
        return sum_of((costs.latency_s, self.most(sent)), (1.0, self.most(loads)))


def exposed(program: LinearProgram, costs: Costs, conv: Callable[[str], Form], backlog: Form) -> Form:
    """`cost_model.exposed_s`: one variable for every gradient that may join the link's backlog.

    The backlog is `backlog` or `least` units, whichever is more; `conv` says of an op whether it is in CONV.
    """
    least = 0.0
    for op in reversed(costs.ops):
        in_conv, sent = conv(op.name), op.conv_ring_bytes * costs.conv_ring.s_per_byte
        if not in_conv.keys() - {ONE}:
            is_conv = in_conv.get(ONE, 0.0)
            least = max(0.0, least - is_conv * op.conv_backward_s) + is_conv * sent
            backlog = sum_of((1.0, backlog), (sent - op.conv_backward_s, in_conv))
            continue
        if least:
            backlog, least = program.most([{ONE: least}, backlog]), 0.0
        backlog = sum_of((1.0, backlog), (-op.conv_backward_s, in_conv))
        if sent:
            backlog = sum_of((1.0, program.most([{}, backlog])), (sent, in_conv))
    return program.most([{ONE: least}, backlog])


def scaled(costs: Costs, units_per_s: float) -> Costs:
    """The same costs in another unit of time than the second."""

    def channel(seconds: Channel) -> Channel:
        return Channel(seconds.s_per_byte * units_per_s, seconds.latency_s * units_per_s)

    return replace(
        costs,
        ops=tuple(
            replace(
                op,
                conv_forward_s=op.conv_forward_s * units_per_s,
                conv_backward_s=op.conv_backward_s * units_per_s,
                fc_forward_s=op.fc_forward_s * units_per_s,
                fc_backward_s=op.fc_backward_s * units_per_s,
                fc_late_s=op.fc_late_s * units_per_s,
            )
            for op in costs.ops
        ),
        links=tuple(replace(link, s_per_byte=link.s_per_byte * units_per_s) for link in costs.links),
        latency_s=costs.latency_s * units_per_s,
        conv_ring=channel(costs.conv_ring),
        fc_ring=channel(costs.fc_ring),
        optimizer_s_per_byte=costs.optimizer_s_per_byte * units_per_s,
    )
