"""Seconds of one op forward or backward on one device."""

from stanza_compiler.cluster import Device
from stanza_compiler.opgraph import Op, OpGraph


def forward_s(graph: OpGraph, op: Op, device: Device, samples: float) -> float:
    """Seconds of one op's forward on `samples` samples: measured if it was, else the roofline."""
    if op.forward_s is not None:
        return op.forward_s * samples / graph.batch_size
    return _roofline_s(op.forward_flops * samples + op.constant_flops, _memory_bytes(op, samples), device)


def backward_s(graph: OpGraph, op: Op, device: Device, samples: float) -> float:
    """Seconds of one op's backward: twice the forward's memory traffic, and twice its constant FLOPs."""
    if op.backward_s is not None:
        return op.backward_s * samples / graph.batch_size
    flops = op.backward_flops * samples + 2 * op.constant_flops
    return _roofline_s(flops, 2 * _memory_bytes(op, samples), device)


def late_share(graph: OpGraph, op: Op) -> float:
    """The share of an op's backward that FC's hosts leave until the input gradients have left them.

    It is what the weight's gradient costs: of a Linear layer a product of the forward's size, of a dense table all.
    """
    if op.sparse_lookups or not any(graph.parameter[name].trainable for name in op.parameters):
        return 0.0
    if op.kind in ("Embedding", "embedding"):
        return 1.0
    if op.kind in ("Linear", "linear") and op.backward_flops:
        return min(1.0, op.forward_flops / op.backward_flops)
    return 0.0


def needs_backward(graph: OpGraph) -> frozenset[str]:
    """Ops whose result depends on a trainable parameter; a tuple's ops are judged by what they read."""
    needed: set[str] = set()
    for op in graph.ops:
        trainable = any(graph.parameter[name].trainable for name in op.parameters)
        reaches = any(name in needed for name in op.inputs)
        if op.output.requires_grad if op.output else trainable or reaches:
            needed.add(op.name)
    return frozenset(needed)


def _roofline_s(flops: float, memory_bytes: float, device: Device) -> float:
    """Williams, Waterman & Patterson, CACM 52(4), 2009; an op without work, such as a view, is never launched."""
    if not flops and not memory_bytes:
        return 0.0
    return max(flops / device.flops_per_s, memory_bytes / device.memory_bytes_per_s) + device.overhead_s


def _memory_bytes(op: Op, samples: float) -> float:
    return op.memory_bytes_per_sample * samples + op.constant_memory_bytes
