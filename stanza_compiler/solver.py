"""The cheapest legal cut under one allocation, as a mixed-integer linear program.

One binary per group of ops: 1 in FC. A tensor's crossing is at least that of a reader less that of its maker.
Each maximum in the cost model becomes a variable that is at least each of its forms; minimising makes it equal.
"""

from dataclasses import replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from stanza_compiler.cost_model import Costs, OpCost
from stanza_compiler.cuts import Cuts, members
from stanza_compiler.dataflow import Tensor
from stanza_compiler.network import Channel

Form = dict[int, float]
"""A linear form: factors by variable; ONE stands for the constant 1."""

ONE = -1

# What `at_most_s` is scaled to, so that HiGHS's absolute tolerances of 1e-6 are far below 1e-9 of it.
UNITS = 1e6

# By how much a cut may be slower to win by fewer bytes; "exact" allows 1e-9.
TIE = 5e-10


def cheapest_cut(costs: Costs, cuts: Cuts, *, at_most_s: float) -> int | None:
    """FC groups of the legal cut with the least iteration time, None when all take more than `at_most_s`."""
    program = _Program(_scaled(costs, UNITS / at_most_s), cuts)
    iteration = program.iteration()
    program.require(_sum((UNITS * (1 + TIE), {ONE: 1.0}), (-1.0, iteration)))
    return program.least(iteration)


def fewest_bytes(costs: Costs, cuts: Cuts, *, at_most_s: float) -> int | None:
    """FC groups of the cut with fewest boundary bytes, then fewest FC ops, of those within `at_most_s`."""
    program = _Program(_scaled(costs, UNITS / at_most_s), cuts)
    program.require(_sum((UNITS * (1 + TIE), {ONE: 1.0}), (-1.0, program.iteration())))
    return program.least(program.boundary())


class _Program:
    """Variables and rows for one allocation: the legal cuts first, then what the cost model adds."""

    def __init__(self, costs: Costs, cuts: Cuts) -> None:
        self._costs, self._cuts = costs, cuts
        self._bounds: list[tuple[float, float]] = []
        self._rows: list[Form] = []
        for group in range(len(cuts.groups)):
            self._variable(cuts.fc_only >> group & 1, 1 - (cuts.conv_only >> group & 1))
        for earlier, later in cuts.edges:
            self.require(_sum((1.0, self._group(later)), (-1.0, self._group(earlier))))
        # Where one side has work, it has the last, or the first, of some chain of groups with work.
        work = list(members(cuts.work))
        last = [self._group(number) for number in work if cuts.later[number] & cuts.work == 1 << number]
        first = [self._group(number) for number in work if cuts.earlier[number] & cuts.work == 1 << number]
        self.require(_sum((-1.0, {ONE: 1.0}), *((1.0, fc) for fc in last)))
        self.require(_sum((len(first) - 1.0, {ONE: 1.0}), *((-1.0, fc) for fc in first)))
        self._crossings = [(tensor, self._crossing(tensor)) for tensor in costs.tensors]

    def require(self, form: Form) -> None:
        """form >= 0."""
        if form.keys() - {ONE} or form.get(ONE, 0.0) < 0:
            self._rows.append(form)

    def iteration(self) -> Form:
        """`cost_model.price_cut`."""
        costs = self._costs
        sides = [(op, self._conv(op.name), self._fc(op.name)) for op in costs.ops]
        conv_bytes = _sum(*((op.gradient_bytes, conv) for op, conv, _ in sides))
        fc_bytes = _sum(*((op.gradient_bytes, fc) for op, _, fc in sides))
        forward = _sum(*((op.conv_forward_s, conv) for op, conv, _ in sides))
        fc_compute = _sum(*((op.fc_forward_s + op.fc_backward_s, fc) for op, _, fc in sides))
        conv_backward = _sum(*((op.conv_backward_s, conv) for op, conv, _ in sides))
        conv_trains = self._most([conv for op, conv, _ in sides if op.gradient_bytes])
        fc_trains = self._most([fc for op, _, fc in sides if op.gradient_bytes])
        fc_ring = _sum((costs.fc_ring.s_per_byte, fc_bytes), (costs.fc_ring.latency_s, fc_trains))
        conv_optimizer = _sum((costs.optimizer_s_per_byte, conv_bytes))
        fc_optimizer = _sum((costs.optimizer_s_per_byte, fc_bytes))
        dedicated = costs.allocation.placement == "dedicated"
        conv_ring = _sum((costs.conv_ring.latency_s, conv_trains), (1.0, self._exposed({} if dedicated else fc_ring)))
        conv_end = _sum((1.0, conv_backward), (1.0, conv_ring), (1.0, conv_optimizer))
        if dedicated:
            end = self._most([conv_end, _sum((1.0, fc_ring), (1.0, fc_optimizer))])
        else:
            end = _sum((1.0, conv_end), (1.0, fc_optimizer))
        return _sum((1.0, forward), (1.0, self._up()), (1.0, fc_compute), (1.0, self._down()), (1.0, end))

    def boundary(self) -> Form:
        """Bytes that cross for one sample on one rank, then FC ops by a weight that never outdoes a byte."""
        largest = max((tensor.value.bytes_at(1) for tensor, _ in self._crossings), default=0.0) or 1.0
        boundary = _sum(
            *((UNITS * tensor.value.bytes_at(1) / largest, crossing) for tensor, crossing in self._crossings)
        )
        return _sum((1.0, boundary), *((1e-3 / len(self._costs.ops), self._fc(op.name)) for op in self._costs.ops))

    def least(self, objective: Form) -> int | None:
        """The groups in FC where `objective` is least, None when the rows leave no cut."""
        entries = [
            (row, variable, factor)
            for row, form in enumerate(self._rows)
            for variable, factor in form.items()
            if variable != ONE
        ]
        rows, variables, factors = zip(*entries, strict=True)
        lower, upper = zip(*self._bounds, strict=True)
        count, n_groups = len(self._bounds), len(self._cuts.groups)
        result = milp(
            np.array([objective.get(variable, 0.0) for variable in range(count)]),
            integrality=np.array([variable < n_groups for variable in range(count)]),
            bounds=Bounds(np.array(lower), np.array(upper)),
            constraints=LinearConstraint(
                csr_array((factors, (rows, variables)), shape=(len(self._rows), count)),
                lb=np.array([-form.get(ONE, 0.0) for form in self._rows]),
            ),
            options={"mip_rel_gap": 0.0},
        )
        if result.x is None:
            return None
        return sum(1 << group for group in range(n_groups) if result.x[group] > 0.5)

    def _variable(self, lower: float, upper: float) -> int:
        self._bounds.append((lower, upper))
        return len(self._bounds) - 1

    def _group(self, number: int) -> Form:
        """1 where the group is in FC, a variable unless it can only be on one side."""
        if self._cuts.conv_only >> number & 1:
            return {}
        return {ONE: 1.0} if self._cuts.fc_only >> number & 1 else {number: 1.0}

    def _fc(self, op: str) -> Form:
        return self._group(self._cuts.group[op])

    def _conv(self, op: str | None) -> Form:
        return _sum((1.0, {ONE: 1.0}), (-1.0, {} if op is None else self._fc(op)))

    def _most(self, forms: list[Form]) -> Form:
        """The maximum of the forms, which is nowhere below 0; 0 for none."""
        known = max((form.get(ONE, 0.0) for form in forms if not form.keys() - {ONE}), default=0.0)
        unknown = [form for form in forms if form.keys() - {ONE}]
        if not unknown or (len(forms) == 1 and not known):
            return unknown[0] if unknown else {ONE: known}
        maximum = self._variable(known, np.inf)
        for form in unknown:
            self.require(_sum((1.0, {maximum: 1.0}), (-1.0, form)))
        return {maximum: 1.0}

    def _crossing(self, tensor: Tensor) -> Form:
        """1 where the tensor crosses: made in CONV, needed in FC."""
        needs = [{ONE: 1.0}] if tensor.is_output else []
        needs += [self._group(number) for number in sorted({self._cuts.group[name] for name in tensor.readers})]
        return self._most(
            [{}, *(_sum((1.0, need), (1.0, self._conv(tensor.maker)), (-1.0, {ONE: 1.0})) for need in needs)]
        )

    def _up(self) -> Form:
        """Latency if anything is sent, and the busiest link's load."""
        costs = self._costs
        sent = [crossing for tensor, crossing in self._crossings if costs.traffic.payload_bytes(tensor.value)]
        if costs.target_bytes and costs.links:
            sent = [{ONE: 1.0}]
        loads = [
            _sum(
                (link.samples * costs.target_bytes * link.s_per_byte, {ONE: 1.0}),
                *((costs.up_s(link, tensor), crossing) for tensor, crossing in self._crossings),
            )
            for link in costs.links
        ]
        return _sum((costs.latency_s, self._most(sent)), (1.0, self._most(loads)))

    def _down(self) -> Form:
        costs = self._costs
        returned = [(tensor, crossing) for tensor, crossing in self._crossings if tensor.value.requires_grad]
        sent = [crossing for tensor, crossing in returned if costs.traffic.payload_bytes(tensor.value)]
        loads = [
            _sum(*((costs.down_s(link, tensor), crossing) for tensor, crossing in returned)) for link in costs.links
        ]
        return _sum((costs.latency_s, self._most(sent)), (1.0, self._most(loads)))

    def _exposed(self, backlog: Form) -> Form:
        """`cost_model.exposed_s`: one variable for every gradient that may join the link's backlog.

        The backlog is `backlog` or `least` units, whichever is more.
        """
        least = 0.0
        for op in reversed(self._costs.ops):
            conv, sent = self._conv(op.name), op.gradient_bytes * self._costs.conv_ring.s_per_byte
            if not conv.keys() - {ONE}:
                is_conv = conv.get(ONE, 0.0)
                least = max(0.0, least - is_conv * op.conv_backward_s) + is_conv * sent
                backlog = _sum((1.0, backlog), (sent - op.conv_backward_s, conv))
                continue
            if least:
                backlog, least = self._most([{ONE: least}, backlog]), 0.0
            backlog = _sum((1.0, backlog), (-op.conv_backward_s, conv))
            if sent:
                backlog = _sum((1.0, self._most([{}, backlog])), (sent, conv))
        return self._most([{ONE: least}, backlog])


def _scaled(costs: Costs, units_per_s: float) -> Costs:
    """The same costs in another unit of time than the second."""

    def channel(seconds: Channel) -> Channel:
        return Channel(seconds.s_per_byte * units_per_s, seconds.latency_s * units_per_s)

    return replace(
        costs,
        ops=tuple(
            OpCost(
                op.name,
                op.conv_forward_s * units_per_s,
                op.conv_backward_s * units_per_s,
                op.fc_forward_s * units_per_s,
                op.fc_backward_s * units_per_s,
                op.gradient_bytes,
            )
            for op in costs.ops
        ),
        links=tuple(replace(link, s_per_byte=link.s_per_byte * units_per_s) for link in costs.links),
        latency_s=costs.latency_s * units_per_s,
        conv_ring=channel(costs.conv_ring),
        fc_ring=channel(costs.fc_ring),
        optimizer_s_per_byte=costs.optimizer_s_per_byte * units_per_s,
    )


def _sum(*terms: tuple[float, Form]) -> Form:
    """The sum of factor * form."""
    total: Form = {}
    for scale, form in terms:
        for variable, factor in form.items():
            total[variable] = total.get(variable, 0.0) + scale * factor
    return total
