"""Which ops are compute-heavy, the ones that every rank should share, which are no lookups, and which large tables."""

from collections.abc import Iterator

from stanza_compiler.opgraph import OpGraph

# How many times its share of the parameter bytes an op's share of the FLOPs must be.
COMPUTE_FACTOR = 2.0

# And at most how many times it may be that of an op of FC in front of CONV.
LOOKUP_FACTOR = 0.5

# The share of the parameter bytes from which on a table is large.
TABLE_SHARE = 0.01


def compute_heavy(graph: OpGraph) -> tuple[str, ...]:
    """Ops that bring at least twice the share of the model's FLOPs that they bring of its parameter bytes.

    They are CONV's by meaning (Stanza, arXiv 1812.10624): a few FC hosts that compute them leave
    every other rank idle, and such a plan rests on the device model's least certain number, the speed of small work.
    """
    return tuple(name for name, flops, size in _shares(graph) if flops and flops >= COMPUTE_FACTOR * size)


def no_lookups(graph: OpGraph) -> tuple[str, ...]:
    """Ops that bring more than half the share of the FLOPs that they bring of the parameter bytes.

    What FC does in front of CONV every rank waits for, at both ends of the step: only tables are worth that.
    """
    return tuple(name for name, flops, size in _shares(graph) if flops > LOOKUP_FACTOR * size)


def large_tables(graph: OpGraph) -> tuple[str, ...]:
    """Lookups with sparse gradients in tables of at least a hundredth of the model's parameter bytes.

    Exchanging the rows that a step looks up costs little wherever a table is, so that by time alone one is left to CONV
    to spare a busy host's link some microseconds, and every CONV rank would hold a copy of it.
    """
    return tuple(name for name, _, size in _shares(graph) if graph.op[name].sparse_lookups and size >= TABLE_SHARE)


def _shares(graph: OpGraph) -> Iterator[tuple[str, float, float]]:
    """(op, its share of the FLOPs, its share of the parameter bytes)."""
    all_flops = graph.forward_flops + graph.constant_flops
    all_bytes = graph.parameter_bytes
    for op in graph.ops:
        own_bytes = sum(graph.parameter[name].bytes for name in op.parameters)
        own_flops = op.forward_flops + op.constant_flops
        yield op.name, own_flops / all_flops if all_flops else 0.0, own_bytes / all_bytes if all_bytes else 0.0
