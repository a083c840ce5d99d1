"""What one rehearsal was asked."""

from dataclasses import dataclass

from stanza_compiler.rehearse.emitted import Emitted


@dataclass(frozen=True, slots=True)
class Options:
    """`beside` are other programs for the same model, `against` peers; `bounds` asks for steps without limits too.

    Each contender takes `steps` measured steps in each of `rounds` runs; `patience_s` bounds those of a run,
    `timeout_s` each wait.
    """

    emitted: Emitted
    hosts: int
    bit_per_s: float
    latency_s: float | None
    host_cpus: float | None
    beside: tuple[Emitted, ...]
    against: tuple[str, ...]
    rounds: int
    steps: int
    warm_up: int
    bounds: bool
    global_batch_size: int | None
    patience_s: float
    timeout_s: float
    as_json: bool

    @property
    def ranks(self) -> int:
        return self.hosts * self.emitted.gpus_per_node
