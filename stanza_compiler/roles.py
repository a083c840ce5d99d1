"""Which ops are compute-heavy: the ones that every rank should share."""

from stanza_compiler.opgraph import OpGraph

# How many times its share of the parameter bytes an op's share of the FLOPs must be.
COMPUTE_FACTOR = 2.0


def compute_heavy(graph: OpGraph) -> tuple[str, ...]:
    """Ops that bring at least twice the share of the model's FLOPs that they bring of its parameter bytes.

    They are CONV's by meaning (Stanza, arXiv 1812.10624): a few FC hosts that compute them leave
    every other rank idle, and such a plan rests on the device model's least certain number, the speed of small work.
    """
    flops = graph.forward_flops + graph.constant_flops
    parameter_bytes = graph.parameter_bytes
    heavy = []
    for op in graph.ops:
        share = (op.forward_flops + op.constant_flops) / flops if flops else 0.0
        own_bytes = sum(graph.parameter[name].bytes for name in op.parameters)
        if share and share * parameter_bytes >= COMPUTE_FACTOR * own_bytes:
            heavy.append(op.name)
    return tuple(heavy)
