"""Into how many micro-batches a step is best cut, by its schedule in predicted seconds."""

from dataclasses import dataclass

from stanza_compiler.allocations import PLACEMENTS
from stanza_compiler.cluster import Cluster
from stanza_compiler.codecs import Codecs
from stanza_compiler.cost_model import Batch, Costs, costs_on, exposed_s, price_cut
from stanza_compiler.errors import PlanError
from stanza_compiler.opgraph import OpGraph, Rules
from stanza_compiler.pipeline import Seconds, schedules, simulate
from stanza_compiler.plan import Request
from stanza_compiler.runtime.layout import Layout
from stanza_compiler.runtime.schedule import Kind
from stanza_compiler.search import Candidate

MOST = 4

# Micro-batches must save this share of the step.
LEAST_GAIN = 0.03

# Before it multiplies, a matrix product reads its weights, writes them in the order of its loops, and reads those.
PACKING_PASSES = 3


def cut_step(
    graph: OpGraph, rules: Rules, cluster: Cluster, request: Request, chosen: Candidate | None
) -> tuple[int, tuple[str, ...]]:
    """Into how many pieces a step is cut, and what that is predicted to bring, in a note.

    Raises PlanError when it can't be cut into as many as asked for.
    """
    if request.micro_batches == 1:
        return 1, ()
    why_not = rules.uncut
    if chosen is None:
        why_not = "the whole model is trained data-parallel"
    elif chosen.front:
        why_not = "a part of FC stands before CONV"
    elif chosen.prediction.allocation.placement not in PLACEMENTS:
        why_not = f"the hosts are {chosen.prediction.allocation.placement}"
    if why_not and request.micro_batches is not None:
        what = f"a step can't be cut into {request.micro_batches} micro-batches: {why_not}"
        raise PlanError(graph.name, what, "pass --micro-batches 1, or auto")
    if why_not or chosen is None:
        return 1, ()
    pieces = Pieces(graph, cluster, request.codecs, chosen)
    number = request.micro_batches or pieces.best()
    if number == 1:
        return 1, ()
    whole_s, cut_s = pieces.step_s(1), pieces.step_s(number)
    return number, (
        f"a step is cut into {number} micro-batches and takes {cut_s * 1e3:.1f} ms, in one piece "
        f"{whole_s * 1e3:.1f} ms; predictions are of steps in one piece",
    )


@dataclass(frozen=True, slots=True)
class Pieces:
    """Steps of a plan of the order conv-fc, cut into pieces, on the machines of `cluster`."""

    graph: OpGraph
    cluster: Cluster
    codecs: Codecs
    chosen: Candidate

    def best(self) -> int:
        """The fastest number of pieces up to MOST, 1 where no other saves at least 3%."""
        most = min(MOST, max(self.chosen.costs.parts))
        prices = {number: self.step_s(number) for number in range(1, most + 1)}
        fastest = min(prices, key=prices.__getitem__)
        return fastest if prices[fastest] <= (1 - LEAST_GAIN) * prices[1] else 1

    def step_s(self, micro_batches: int) -> float:
        """Seconds of a step; of one in a single piece what `price_cut` says, but that parted ties are left out."""
        allocation, fc_ops = self.chosen.prediction.allocation, self.chosen.fc_ops
        samples = -(-max(self.chosen.costs.parts) // micro_batches)
        costs = costs_on(self.graph, self.cluster, Batch(samples), self.codecs)(allocation)
        terms = price_cut(costs, fc_ops).terms
        late_s = sum(op.fc_late_s for op in self.chosen.costs.ops if op.name in fc_ops)
        conv_again_s, fc_again_s = (self._packing_s(micro_batches, on_hosts=each) for each in (False, True))
        seconds = Seconds(
            forward=terms["conv_forward_s"] + conv_again_s,
            up=terms["up_s"],
            fc_forward=terms["fc_forward_s"] + fc_again_s,
            fc_backward=terms["fc_backward_s"] + fc_again_s,
            down=terms["down_s"],
            backward=terms["conv_backward_s"] + conv_again_s,
        )
        layout = Layout(allocation.conv_workers, allocation.fc_workers, allocation.placement)
        spans = simulate(layout, schedules(layout, micro_batches), seconds)
        conv_end_s = max((span.stop for span in spans if span.action.kind == Kind.BACKWARD), default=0.0)
        host_end_s = max((span.stop for span in spans if span.action.kind == Kind.FC_BACKWARD), default=0.0)
        return _with_sums(costs, fc_ops, conv_end_s, host_end_s + terms["down_s"], late_s)

    def _packing_s(self, micro_batches: int, *, on_hosts: bool) -> float:
        """A piece's share of what packing a role's weights costs each time but the first, forward or backward."""
        fc_ops = self.chosen.fc_ops
        ops = (op for op in self.graph.ops if op.forward_flops and (op.name in fc_ops) == on_hosts)
        packed_bytes = PACKING_PASSES * sum(op.constant_memory_bytes for op in ops)
        return (1 - 1 / micro_batches) * packed_bytes / self.cluster.device.memory_bytes_per_s


def _with_sums(costs: Costs, fc_ops: frozenset[str], conv_end_s: float, host_end_s: float, late_s: float) -> float:
    """When the step ends whose CONV backward, and last gradients for CONV, end then: sums and updates follow.

    CONV's sums are hidden by the last micro-batch's backward alone; `costs` are those of a micro-batch.
    """
    conv = [op for op in costs.ops if op.name not in fc_ops]
    fc = [op for op in costs.ops if op.name in fc_ops]
    fc_bytes = sum(op.fc_ring_bytes for op in fc)
    fc_ring_s = costs.fc_ring.latency_s + fc_bytes * costs.fc_ring.s_per_byte if fc_bytes else 0.0
    conv_optimizer_s = sum(op.conv_updated_bytes for op in conv) * costs.optimizer_s_per_byte
    fc_optimizer_s = sum(op.fc_updated_bytes for op in fc) * costs.optimizer_s_per_byte
    is_dedicated = costs.allocation.placement == "dedicated"
    steps = [(op.conv_backward_s, op.conv_ring_bytes) for op in conv]
    rings_s = exposed_s(steps, costs.conv_ring.s_per_byte, backlog_s=0.0 if is_dedicated else fc_ring_s)
    if any(op.conv_ring_bytes for op in conv):
        rings_s += costs.conv_ring.latency_s
    if is_dedicated:
        return max(conv_end_s + rings_s + conv_optimizer_s, host_end_s + late_s + fc_ring_s + fc_optimizer_s)
    return conv_end_s + max(rings_s, late_s) + conv_optimizer_s + fc_optimizer_s
