"""What the heaviest parameters would cost under data-parallel."""

from stanza_compiler.cluster import Cluster
from stanza_compiler.gradients import parameter_gradients
from stanza_compiler.network import ring
from stanza_compiler.opgraph import OpGraph
from stanza_compiler.plan import HeavyParameter

# Parameters told of: at least this share of the model's bytes, and the heaviest of them.
LEAST_SHARE = 0.01
MOST = 32


def heavy_parameters(
    graph: OpGraph, roles: dict[str, str], world_size: int, cluster: Cluster, samples: int, *, halved: bool = False
) -> tuple[HeavyParameter, ...]:
    """The trained parameters that have at least 1% of the bytes, heaviest first; `roles` say who trains which.

    Under data-parallel on `world_size` ranks of `samples` samples each, dense gradients maybe `halved`.
    """
    channel = ring(range(world_size), cluster)
    found = []
    for name, gradient in parameter_gradients(graph).items():
        if graph.parameter[name].bytes < LEAST_SHARE * graph.parameter_bytes:
            continue
        ring_bytes = gradient.ring_bytes(world_size, samples, halved=halved)
        found.append(
            HeavyParameter(
                name=name,
                role=roles.get(name, ""),
                bytes=graph.parameter[name].bytes,
                rows=sum(table.touched(samples) for table in gradient.tables) if gradient.tables else None,
                data_parallel_bytes=2.0 * (world_size - 1) * ring_bytes,
                data_parallel_s=ring_bytes * channel.s_per_byte,
            )
        )
    return tuple(sorted(found, key=lambda each: -each.bytes)[:MOST])
