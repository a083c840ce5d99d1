"""The cheapest plan with FC's part in front of CONV's, under one allocation, as a mixed-integer linear program.

Two binaries per group of ops: in front, behind; neither is CONV. Both are monotone along what ops read.
"""

from stanza_compiler.cost_model import Costs
from stanza_compiler.cuts import members
from stanza_compiler.dataflow import Tensor
from stanza_compiler.front import FrontSpace, Order
from stanza_compiler.linear import ONE, Form, LinearProgram, sum_of
from stanza_compiler.solver import TIE, UNITS, exposed, scaled


def cheapest_front(costs: Costs, space: FrontSpace, order: Order, *, at_most_s: float) -> tuple[int, int] | None:
    """The groups in front and those behind with the least iteration time; None when all take over `at_most_s`."""
    program = _Program(scaled(costs, UNITS / at_most_s), space, order)
    iteration = program.iteration()
    program.require(sum_of((UNITS * (1 + TIE), {ONE: 1.0}), (-1.0, iteration)))
    values = program.least(iteration)
    if values is None:
        return None
    numbers = range(len(space.cuts.groups))
    front = sum(1 << number for number in numbers if values[2 * number] > 0.5)
    back = sum(1 << number for number in numbers if values[2 * number + 1] > 0.5)
    return front, back


class _Program(LinearProgram):
    """The variables and rows of one allocation and order: legal plans first, then what the cost model adds."""

    def __init__(self, costs: Costs, space: FrontSpace, order: Order) -> None:
        super().__init__()
        self._costs, self._space, self._order = costs, space, order
        self._has_back = order == "fc-conv-fc"
        cuts = space.cuts
        for number in range(len(cuts.groups)):
            self.variable(0, space.front >> number & 1, integer=True)
            self.variable(space.last >> number & 1, (space.back >> number & 1) * self._has_back, integer=True)
            self.require(_conv(self._front(number), self._back(number)))
        for earlier, later in cuts.edges:
            self.require(sum_of((1.0, self._front(earlier)), (-1.0, self._front(later))))
            self.require(sum_of((1.0, self._back(later)), (-1.0, self._back(earlier))))
        for first, *others in space.ties:
            for other in others:
                gap = sum_of((1.0, self._fc(first)), (-1.0, self._fc(other)))
                self.require(gap)
                self.require(sum_of((-1.0, gap)))
        self._some([self._front(number) for number in members(space.heavy)])
        self._some([self._conv(number) for number in members(cuts.work)])
        if self._has_back:
            self._some([self._back(number) for number in members(cuts.work)])
        self._asked = [(tensor, self._goes_to_front(tensor)) for tensor in costs.tensors if tensor.maker is None]
        self._given = [(tensor, self._comes_down(tensor)) for tensor in costs.tensors if tensor.maker is not None]
        asked = {tensor.value.name: form for tensor, form in self._asked}
        self._crossing = [
            (tensor, self._goes_up(tensor, asked.get(tensor.value.name, {})))
            for tensor in costs.tensors
            if self._has_back
        ]

    def iteration(self) -> Form:
        """`cost_model.price_cut`."""
        costs = self._costs
        sides = [(op, self._conv_op(op.name), self._fc(self._group(op.name))) for op in costs.ops]
        fc_bytes = sum_of(*((op.fc_ring_bytes, fc) for op, _, fc in sides))
        conv_updated = sum_of(*((op.conv_updated_bytes, conv) for op, conv, _ in sides))
        fc_updated = sum_of(*((op.fc_updated_bytes, fc) for op, _, fc in sides))
        conv_forward = sum_of(*((op.conv_forward_s, conv) for op, conv, _ in sides))
        conv_backward = sum_of(*((op.conv_backward_s, conv) for op, conv, _ in sides))
        late = sum_of(*((op.fc_late_s, self._back(self._group(op.name))) for op in costs.ops))
        fc_compute = sum_of(*((op.fc_forward_s + op.fc_backward_s, fc) for op, _, fc in sides), (-1.0, late))
        conv_trains = self.most([conv for op, conv, _ in sides if op.trains])
        conv_ring = sum_of((costs.conv_ring.latency_s, conv_trains), (1.0, exposed(self, costs, self._conv_op, {})))
        # In front stands something that trains.
        fc_ring = sum_of((costs.fc_ring.s_per_byte, fc_bytes), (costs.fc_ring.latency_s, {ONE: 1.0}))
        conv_optimizer = sum_of((costs.optimizer_s_per_byte, conv_updated))
        fc_end = sum_of((1.0, fc_ring), (costs.optimizer_s_per_byte, fc_updated))
        if costs.allocation.placement == "dedicated":
            meanwhile = self.most([sum_of((1.0, conv_backward), (1.0, conv_ring)), late])
            end = self.most([conv_optimizer, fc_end])
        else:
            meanwhile = sum_of((1.0, conv_backward), (1.0, self.most([conv_ring, late])))
            end = sum_of((1.0, conv_optimizer), (1.0, fc_end))
        targets = costs.target_bytes if self._has_back else 0
        given, crossing = _with_gradient(self._given), _with_gradient(self._crossing)
        messages = [
            self._message(self._asked, 0),
            self._message(self._given, 0, to_all=True),
            self._message(self._crossing, targets),
            self._message(crossing, 0),
            self._message(given, 0, to_all=True),
        ]
        parts = (conv_forward, fc_compute, meanwhile, end, *messages)
        return sum_of(*((1.0, part) for part in parts))

    def _some(self, forms: list[Form]) -> None:
        self.require(sum_of((-1.0, {ONE: 1.0}), *((1.0, form) for form in forms)))

    def _group(self, op: str) -> int:
        return self._space.cuts.group[op]

    def _front(self, number: int) -> Form:
        return {2 * number: 1.0} if self._space.front >> number & 1 else {}

    def _back(self, number: int) -> Form:
        if self._space.last >> number & 1:
            return {ONE: 1.0}
        return {2 * number + 1: 1.0} if self._has_back and self._space.back >> number & 1 else {}

    def _fc(self, number: int) -> Form:
        return sum_of((1.0, self._front(number)), (1.0, self._back(number)))

    def _conv(self, number: int) -> Form:
        return _conv(self._front(number), self._back(number))

    def _conv_op(self, op: str) -> Form:
        return self._conv(self._group(op))

    def _readers(self, tensor: Tensor) -> list[int]:
        return sorted({self._group(name) for name in tensor.readers})

    def _goes_to_front(self, tensor: Tensor) -> Form:
        readers = [self._front(number) for number in self._readers(tensor)]
        readers = [form for form in readers if form]
        if not readers:
            return {}
        asked: Form = {self.variable(0, 1): 1.0}
        for form in readers:
            self.require(sum_of((1.0, asked), (-1.0, form)))
        self.require(sum_of((-1.0, asked), *((1.0, form) for form in readers)))  # asking for nothing is no way out
        return asked

    def _comes_down(self, tensor: Tensor) -> Form:
        made = self._front(self._group(str(tensor.maker)))
        if not made:
            return {}
        needs = [{ONE: 1.0}] if tensor.is_output and not self._has_back else []
        needs += [self._conv(number) for number in self._readers(tensor)]
        return self.most([{}, *(sum_of((1.0, made), (1.0, need), (-1.0, {ONE: 1.0})) for need in needs)])

    def _goes_up(self, tensor: Tensor, asked: Form) -> Form:
        at_hand = {ONE: 1.0} if tensor.maker is None else self._conv_op(tensor.maker)
        needs = [{ONE: 1.0}] if tensor.is_output else []
        needs += [self._back(number) for number in self._readers(tensor)]
        forms = (sum_of((1.0, at_hand), (1.0, need), (-1.0, asked), (-1.0, {ONE: 1.0})) for need in needs if need)
        return self.most([{}, *forms])

    def _message(self, tensors: list[tuple[Tensor, Form]], target_bytes: int, *, to_all: bool = False) -> Form:
        """Latency if anything is sent, and the busiest link's load."""
        costs = self._costs
        sent = [form for tensor, form in tensors if costs.traffic.payload_bytes(tensor.value, to_all=to_all)]
        if target_bytes and costs.traffic.samples:
            sent = [{ONE: 1.0}]
        loads = [
            sum_of(
                (link.samples * target_bytes * link.s_per_byte, {ONE: 1.0}),
                *((costs.up_s(link, tensor, to_all=to_all), form) for tensor, form in tensors),
            )
            for link in costs.links
        ]
        return sum_of((costs.latency_s, self.most(sent)), (1.0, self.most(loads)))


def _conv(front: Form, back: Form) -> Form:
    return sum_of((1.0, {ONE: 1.0}), (-1.0, front), (-1.0, back))


def _with_gradient(tensors: list[tuple[Tensor, Form]]) -> list[tuple[Tensor, Form]]:
    return [(tensor, form) for tensor, form in tensors if tensor.value.requires_grad]
