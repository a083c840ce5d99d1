"""What a step takes whose FC layers the hosts share by columns (docs/cost-model.md has the formulas)."""

from collections.abc import Iterator
from dataclasses import replace

from stanza_compiler.cluster import Cluster
from stanza_compiler.codecs import PLAIN, Codecs
from stanza_compiler.cost_model import Batch, costs_on, price_cut, with_network
from stanza_compiler.gradients import Gradient, gradients
from stanza_compiler.network import Channel, host_exchange, sharded_copies, sharded_s_per_byte
from stanza_compiler.op_time import backward_s, forward_s, late_share, needs_backward
from stanza_compiler.opgraph import Op, OpGraph, Shardable, Value
from stanza_compiler.plan import Allocation, Prediction

# Of each row a host tells the others its largest score, the sum of its exponentials and the target's score.
LOSS_NUMBERS = 3


class ShardedPrices:
    """Prices FC parts that hosts share; what CONV costs with a cut is computed once for all numbers of hosts.

    `base` are the costs of the same ranks with one host among them.
    """

    def __init__(
        self, graph: OpGraph, shardable: Shardable, cluster: Cluster, batch: Batch, ranks: int, codecs: Codecs = PLAIN
    ) -> None:
        self.base = costs_on(graph, cluster, batch, codecs)(Allocation(ranks, 1, "colocated"))
        self._graph, self._shardable, self._cluster = graph, shardable, cluster
        self._tensors, self._gradients, self._trained = self.base.tensors, gradients(graph), needs_backward(graph)
        self._conv: dict[tuple[frozenset[str], Cluster], Prediction] = {}

    def price(self, fc_ops: frozenset[str], hosts: int, cluster: Cluster | None = None) -> Prediction:
        """One step with `fc_ops`, a chain that hosts can share, on `hosts` of the CONV ranks."""
        cluster = cluster or self._cluster
        parts = self.base.parts
        allocation, samples = Allocation(len(parts), hosts, "sharded"), sum(parts)
        conv = self._conv_alone(fc_ops, cluster)
        terms, sent = dict(conv.terms), conv.bytes_per_step
        (crossing,) = [tensor.value for tensor in self._tensors if tensor.crosses(fc_ops)]
        s_per_byte, copies = sharded_s_per_byte(allocation, parts, cluster), sharded_copies(allocation, parts)
        back_bytes = crossing.bytes_per_sample if crossing.requires_grad else 0
        for term, size in (("up_s", crossing.bytes_per_sample + self.base.target_bytes), ("down_s", back_bytes)):
            if size and copies:
                terms[term] = cluster.latency_s + size * s_per_byte
                sent += size * copies
        exchange = host_exchange(allocation, cluster)
        late_s = 0.0
        for op, share, gathered in self._chain(fc_ops, hosts):
            own = _own_columns(op, share, is_layer=op.name in self._shardable.linears)
            gather_s = _exchange_s(exchange, gathered * samples)
            terms["fc_forward_s"] += forward_s(self._graph, own, cluster.device, samples) + gather_s
            if op.name in self._trained:
                own_backward_s = backward_s(self._graph, own, cluster.device, samples)
                own_late_s = late_share(self._graph, op) * own_backward_s
                late_s += own_late_s
                terms["fc_backward_s"] += own_backward_s - own_late_s + gather_s
                sent += (hosts - 1) * gathered * samples
            sent += (hosts - 1) * gathered * samples
            updated_bytes = share * self._gradients.get(op.name, Gradient()).dense_bytes
            terms["optimizer_s"] += updated_bytes * self.base.optimizer_s_per_byte
        loss_bytes = self._loss_bytes(hosts) * samples
        terms["fc_forward_s"] += _exchange_s(exchange, loss_bytes)
        terms["fc_exposed_s"] = max(0.0, late_s - terms["conv_allreduce_exposed_s"])
        return Prediction(allocation, samples, sent + (hosts - 1) * loss_bytes, terms)

    def _conv_alone(self, fc_ops: frozenset[str], cluster: Cluster) -> Prediction:
        """The step as if FC took no time and nothing crossed."""
        known = self._conv.get((fc_ops, cluster))
        if known is None:
            ops = tuple(
                replace(op, fc_forward_s=0.0, fc_backward_s=0.0, fc_late_s=0.0, fc_ring_bytes=0.0, fc_updated_bytes=0.0)
                for op in self.base.ops
            )
            alone = replace(self.base, ops=ops, tensors=(), target_bytes=0)
            known = self._conv[fc_ops, cluster] = price_cut(with_network(alone, cluster), fc_ops)
        return known

    def _chain(self, fc_ops: frozenset[str], hosts: int) -> Iterator[tuple[Op, float, float]]:
        """Each op, the busiest host's share of its columns, and the bytes a sample that it gathers from all hosts."""
        share, before = 1.0, None
        for op in (op for op in self._graph.ops if op.name in fc_ops and not op.is_size):
            gathered = 0.0
            if op.name in self._shardable.linears:
                gathered = before.bytes_per_sample if before is not None and share < 1 else 0.0
                share = _largest_share(_output(op).shape[-1], hosts)
            yield op, share, gathered
            before = _output(op)

    def _loss_bytes(self, hosts: int) -> float:
        """Bytes a sample that the loss gathers: three numbers a row from each host, or all scores."""
        scores = self._graph.value[self._graph.outputs[0]]
        if hosts == 1:
            return 0.0
        if self._shardable.takes_all:
            return scores.bytes_per_sample
        return LOSS_NUMBERS * hosts * scores.bytes_per_sample / scores.shape[-1]


def _own_columns(op: Op, share: float, *, is_layer: bool) -> Op:
    """The op on a host's columns; a layer reads all of its input."""
    read_bytes = op.memory_bytes_per_sample - _output(op).bytes_per_sample if is_layer else 0
    return replace(
        op,
        forward_flops=round(op.forward_flops * share),
        backward_flops=round(op.backward_flops * share),
        constant_flops=round(op.constant_flops * share),
        memory_bytes_per_sample=read_bytes + round((op.memory_bytes_per_sample - read_bytes) * share),
        constant_memory_bytes=round(op.constant_memory_bytes * share),
        forward_s=None if op.forward_s is None else op.forward_s * share,
        backward_s=None if op.backward_s is None else op.backward_s * share,
    )


def _largest_share(width: int, hosts: int) -> float:
    return -(-width // hosts) / width


def _exchange_s(exchange: Channel, size: float) -> float:
    return exchange.latency_s + size * exchange.s_per_byte if size and exchange.s_per_byte else 0.0


def _output(op: Op) -> Value:
    assert op.output is not None
    return op.output
