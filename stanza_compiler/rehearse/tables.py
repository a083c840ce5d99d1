"""A rehearsal as tables."""

from collections.abc import Sequence

from stanza_compiler.document import Document, Section, Table
from stanza_compiler.figures import scaled
from stanza_compiler.rehearse.options import Options
from stanza_compiler.rehearse.rehearsal import Outcome
from stanza_compiler.rehearse.summary import Summary


def build_document(options: Options, outcomes: Sequence[Outcome]) -> Document:
    """Everything that was measured."""
    return Document(f"{options.emitted.name} rehearsed", (_hosts(options), _steps(outcomes)))


def _hosts(options: Options) -> Section:
    quota = f"{options.host_cpus:g} processors each" if options.host_cpus else "no quota"
    return Section(
        "Hosts",
        facts=(
            ("emulated hosts", f"{options.hosts}, {options.emitted.gpus_per_node} ranks each, {quota}"),
            ("links", f"{scaled(options.bit_per_s, 'bit/s')} each way"),
        ),
    )


def _steps(outcomes: Sequence[Outcome]) -> Section:
    header = ("", "step ms", "quartiles", "samples per s", "stanza is", "sent per sample", "busiest link", "CPU busy")
    base = outcomes[0].summary
    rows = tuple(_row(outcome.name, outcome.summary, base) for outcome in outcomes if outcome.summary)
    failed = tuple(f"{outcome.name}: {outcome.failure}" for outcome in outcomes if outcome.failure)
    return Section("Measured", table=Table(header, "l" + "r" * (len(header) - 1), rows), sentences=failed)


def _row(name: str, summary: Summary, base: Summary | None) -> tuple[str, ...]:
    step = summary.step_s
    return (
        name,
        _ms(step.median),
        f"{_ms(step.low_quartile)}..{_ms(step.high_quartile)}",
        f"{summary.samples_per_s:,.4g}",
        f"{base.samples_per_s / summary.samples_per_s:.2f}x" if base else "-",
        scaled(summary.wire_bytes_per_sample, "B"),
        scaled(summary.busiest_bytes, "B"),
        f"{summary.busy:.0%}",
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.4g}" if seconds < 1 else f"{seconds * 1e3:,.0f}"
