"""A rehearsal as tables."""

from stanza_compiler.document import Document, Section, Table
from stanza_compiler.figures import scaled
from stanza_compiler.plan import TERMS
from stanza_compiler.rehearse.options import Options
from stanza_compiler.rehearse.predict import FRAME_PAYLOAD
from stanza_compiler.rehearse.rehearsal import Outcome, Rehearsed
from stanza_compiler.rehearse.summary import Summary


def build_document(options: Options, rehearsed: Rehearsed) -> Document:
    """Everything that was measured, beside what was predicted."""
    sections = [_hosts(options, rehearsed), _steps(options, rehearsed)]
    sections += [_terms(each) for each in rehearsed.outcomes if each.summary and each.prediction]
    return Document(f"{options.emitted.name} rehearsed", tuple(sections))


def bound_s(outcome: Outcome, bit_per_s: float) -> float | None:
    """What no program that sends as much could undercut: the step without limits, or the busiest link's bytes."""
    if outcome.summary is None or outcome.unshaped is None:
        return None
    return max(outcome.unshaped.step_s.median, outcome.summary.busiest_bytes * 8 / (FRAME_PAYLOAD * bit_per_s))


def _hosts(options: Options, rehearsed: Rehearsed) -> Section:
    quota = f"{options.host_cpus:g} processors each" if options.host_cpus else "no CPU quota"
    return Section(
        "Hosts",
        facts=(
            ("emulated", f"{options.hosts} hosts, {_ranks(options.emitted.gpus_per_node)} each, {quota}"),
            ("links", f"{scaled(options.bit_per_s, 'bit/s')} each way"),
            ("program", str(rehearsed.allocation)),
            ("batch", f"{rehearsed.samples} samples a step of all ranks together"),
        ),
    )


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _steps(options: Options, rehearsed: Rehearsed) -> Section:
    header = ["", "step ms", "quartiles", "samples per s", "stanza is", "sent per sample", "busiest link", "CPU busy"]
    if options.bounds:
        header.insert(3, "bound ms")
    base = rehearsed.outcomes[0].summary
    rows = tuple(_row(outcome, base, options) for outcome in rehearsed.outcomes if outcome.summary)
    failed = [f"{outcome.name}: {outcome.failure}" for outcome in rehearsed.outcomes if outcome.failure]
    failed += [
        f"{outcome.name} could not be predicted: {outcome.no_prediction}"
        for outcome in rehearsed.outcomes
        if outcome.no_prediction and not outcome.failure
    ]
    return Section("Measured", table=Table(tuple(header), "l" + "r" * (len(header) - 1), rows), sentences=tuple(failed))


def _row(outcome: Outcome, base: Summary | None, options: Options) -> tuple[str, ...]:
    summary = outcome.summary
    assert summary is not None
    assert base is not None
    step = summary.step_s
    cells = [
        outcome.name,
        _ms(step.median),
        f"{_ms(step.low_quartile)}..{_ms(step.high_quartile)}",
        f"{summary.samples_per_s:,.4g}",
        f"{base.samples_per_s / summary.samples_per_s:.2f}x",
        scaled(summary.wire_bytes_per_sample, "B"),
        scaled(summary.busiest_bytes, "B"),
        f"{summary.busy:.0%}",
    ]
    if options.bounds:
        bound = bound_s(outcome, options.bit_per_s)
        cells.insert(3, _ms(bound) if bound is not None else "-")
    return tuple(cells)


def _terms(outcome: Outcome) -> Section:
    summary, prediction = outcome.summary, outcome.prediction
    assert summary is not None
    assert prediction is not None
    names = [*TERMS, *sorted({*summary.terms, *prediction.terms} - {*TERMS})]
    rows = [
        _compared(name.removesuffix("_s").replace("_", " "), summary.terms[name], prediction.terms[name])
        for name in names
        if name in summary.terms and name in prediction.terms
    ]
    rows.append(_compared("step", summary.step_s.median, prediction.step_s))
    for way, measured, predicted in (
        ("sent", summary.sent_bytes, prediction.sent_bytes),
        ("received", summary.received_bytes, prediction.received_bytes),
    ):
        rows += [
            (f"{way} by host {host}", scaled(one, "B"), scaled(other, "B"), _off(one, other))
            for host, (one, other) in enumerate(zip(measured, predicted, strict=True))
        ]
    header = ("", "measured", "predicted", "off by")
    return Section(
        f"{outcome.name}: a step in ms, and what hosts' links carry", table=Table(header, "lrrr", tuple(rows))
    )


def _compared(name: str, measured_s: float, predicted_s: float) -> tuple[str, ...]:
    return name, _ms(measured_s), _ms(predicted_s), _off(measured_s, predicted_s)


def _off(measured: float, predicted: float) -> str:
    """How far what was measured lies above the prediction."""
    return f"{measured / predicted - 1:+.1%}" if predicted else "-"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.4g}" if seconds < 1 else f"{seconds * 1e3:,.0f}"
