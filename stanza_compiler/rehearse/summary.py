"""One contender's measured steps in a few figures."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from stanza_compiler.rehearse.messages import Measured


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of several figures and how far they lie apart."""

    median: float
    low_quartile: float
    high_quartile: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Seconds per step; samples/s at the median step; bytes per step and host that crossed its interface.

    `busy` is the share of this machine's processors that worked: near 1, they and not the links decide the time.
    `terms` are the medians of what the program itself timed, `payload_bytes` what it says all ranks sent in a step.
    """

    steps: int
    step_s: Spread
    samples_per_step: float
    sent_bytes: tuple[float, ...]
    received_bytes: tuple[float, ...]
    cpu_s_per_step: float
    busy: float
    terms: dict[str, float]
    payload_bytes: float

    @property
    def samples_per_s(self) -> float:
        return self.samples_per_step / self.step_s.median

    @property
    def wire_bytes_per_sample(self) -> float:
        """Bytes that all hosts together send for one sample."""
        return sum(self.sent_bytes) / self.samples_per_step

    @property
    def busiest_bytes(self) -> float:
        """The most that one link carries in one direction in a step."""
        return max(*self.sent_bytes, *self.received_bytes)


def summarise(runs: Sequence[Measured], *, processors: int) -> Summary:
    """All measured steps of one or several runs of the same program."""
    lines: list[dict[str, Any]] = [line for run in runs for line in run.lines]
    samples = [float(line["samples"]) for line in lines]
    rates = [float(line["samples_per_s"]) for line in lines]
    times: list[dict[str, float]] = [line.get("times", {}) for line in lines]
    steps = len(lines)
    cpu_s = sum(run.cpu_s for run in runs)
    return Summary(
        steps=steps,
        step_s=spread([size / rate for size, rate in zip(samples, rates, strict=True)]),
        samples_per_step=statistics.fmean(samples),
        sent_bytes=_per_step([run.sent_bytes for run in runs], steps),
        received_bytes=_per_step([run.received_bytes for run in runs], steps),
        cpu_s_per_step=cpu_s / steps,
        busy=cpu_s / (sum(run.elapsed_s for run in runs) * processors),
        terms={term: statistics.median(each.get(term, 0.0) for each in times) for term in dict.fromkeys(chain(*times))},
        payload_bytes=statistics.median(float(line.get("bytes_sent", 0)) for line in lines),
    )


def _per_step(totals: Sequence[tuple[int, ...]], steps: int) -> tuple[float, ...]:
    return tuple(sum(host) / steps for host in zip(*totals, strict=True))


def spread(figures: Sequence[float]) -> Spread:
    """
    >>> spread([4.0, 1.0, 2.0, 3.0, 5.0])
    Spread(median=3.0, low_quartile=2.0, high_quartile=4.0, least=1.0, most=5.0)
    """
    low, median, high = statistics.quantiles(figures, n=4, method="inclusive") if len(figures) > 1 else [*figures] * 3
    return Spread(median, low, high, min(figures), max(figures))
