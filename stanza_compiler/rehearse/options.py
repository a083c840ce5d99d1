"""What one rehearsal was asked."""

from dataclasses import dataclass

from stanza_compiler.rehearse.emitted import Emitted


@dataclass(frozen=True, slots=True)
class Options:
    """`against` names the peers; `patience_s` bounds each contender's measured steps, `timeout_s` each wait."""

    emitted: Emitted
    hosts: int
    bit_per_s: float
    latency_s: float | None
    host_cpus: float | None
    against: tuple[str, ...]
    steps: int
    warm_up: int
    global_batch_size: int | None
    patience_s: float
    timeout_s: float
    as_json: bool
