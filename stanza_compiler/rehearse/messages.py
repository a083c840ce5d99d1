"""What the command and the first process of its sandbox tell each other, as JSON lines."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Network:
    """The emulated hosts: how many, and the cgroup folders of each one's CPU quota (none without quota)."""

    hosts: int
    quota_folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """One program to run on all hosts: `python command...` once per rank, which writes `metrics`, a line a step.

    The first `warm_up` lines are not measured, the next `steps` are; after `patience_s` seconds of them two are
    enough. Nothing new for `timeout_s` seconds is a failure. `bit_per_s` None leaves the links as fast as they are.
    Logs are written to `folder`.
    """

    command: tuple[str, ...]
    folder: str
    metrics: str
    ranks_per_host: int
    bit_per_s: float | None
    warm_up: int
    steps: int
    patience_s: float
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run showed: the metrics of its measured steps, bytes through each host's interface meanwhile.

    `elapsed_s` is how long these steps took together, `cpu_s` what all processors worked in it.
    """

    lines: tuple[dict[str, object], ...]
    sent_bytes: tuple[int, ...]
    received_bytes: tuple[int, ...]
    elapsed_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run ended early: `what` happened to `rank`, or to no rank in particular (-1)."""

    rank: int
    what: str
