"""One contender's measured steps in a few figures."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

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
    """Seconds per step; samples/s at the median step; bytes per step and host on the wire, frames' headers included.

    `busy` is the share of this machine's processors that worked: near 1, they and not the links decide the time.
    """

    steps: int
    step_s: Spread
    samples_per_step: float
    sent_bytes: tuple[float, ...]
    received_bytes: tuple[float, ...]
    cpu_s_per_step: float
    busy: float

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


def summarise(measured: Measured, *, processors: int) -> Summary:
    samples = [float(line["samples"]) for line in measured.lines]  # type: ignore[arg-type]  # read from JSON
    rates = [float(line["samples_per_s"]) for line in measured.lines]  # type: ignore[arg-type]  # read from JSON
    steps = len(samples)
    return Summary(
        steps=steps,
        step_s=spread([size / rate for size, rate in zip(samples, rates, strict=True)]),
        samples_per_step=statistics.fmean(samples),
        sent_bytes=tuple(total / steps for total in measured.sent_bytes),
        received_bytes=tuple(total / steps for total in measured.received_bytes),
        cpu_s_per_step=measured.cpu_s / steps,
        busy=measured.cpu_s / (measured.elapsed_s * processors),
    )


def spread(figures: Sequence[float]) -> Spread:
    """
    >>> spread([4.0, 1.0, 2.0, 3.0, 5.0])
    Spread(median=3.0, low_quartile=2.0, high_quartile=4.0, least=1.0, most=5.0)
    """
    low, median, high = statistics.quantiles(figures, n=4, method="inclusive") if len(figures) > 1 else [*figures] * 3
    return Spread(median, low, high, min(figures), max(figures))
