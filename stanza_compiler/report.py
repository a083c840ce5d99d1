"""What a compile has to say."""

from typing import Any

from stanza_compiler.codecs import PLAIN, Codecs
from stanza_compiler.document import Document, Section, Table
from stanza_compiler.document_markdown import render_markdown
from stanza_compiler.figures import milliseconds, scaled, share
from stanza_compiler.layer_table import Layer, layers, merged
from stanza_compiler.opgraph import OpGraph
from stanza_compiler.plan import STRATEGIES, TERMS, Allocation, Boundary, Plan, Prediction, Stage

BRIEF_LAYERS = 24


def markdown(plan: Plan, graph: OpGraph) -> str:
    """report.md: every op has its row in the layer table."""
    return render_markdown(build_report(plan, graph))


def build_report(plan: Plan, graph: OpGraph, *, brief: bool = False) -> Document:
    """Everything about `plan`; a brief one merges rows of a long layer table and leaves folders out of lines."""
    sections = (
        _summary(plan, graph),
        _layers(plan, graph, brief=brief),
        _stages(plan),
        _cut(plan),
        _predictions(plan),
        _orders(plan),
        _heavy_parameters(plan),
        _alternatives(plan),
        _uncounted(graph),
        Section("Notes", sentences=plan.notes),
        _certificate(plan),
    )
    return Document(
        f"{plan.source}: {plan.verdict}",
        tuple(section for section in sections if section.facts or section.table or section.sentences),
    )


def _summary(plan: Plan, graph: OpGraph) -> Section:
    parameters = sum(parameter.elements for parameter in graph.parameters)
    flops = f"{scaled(plan.totals.forward_flops, 'FLOPs')} forward per sample"
    if plan.totals.constant_flops:
        flops += f" and {scaled(plan.totals.constant_flops, 'FLOPs')} per batch"
    return Section(
        "Verdict",
        facts=(
            ("verdict", plan.verdict),
            ("reason", plan.reason),
            ("allocation", str(plan.allocation)),
            ("cluster", _cluster(plan.cluster)),
            ("batch", f"{plan.batch_size} samples per rank that reads data"),
            ("model", f"{parameters:,} parameters ({scaled(plan.totals.parameter_bytes, 'B')}), {flops}"),
            *([("on the wire", _codecs(plan.codecs))] if plan.codecs != PLAIN else []),
            *([("step", f"cut into {plan.micro_batches} micro-batches")] if plan.micro_batches > 1 else []),
            ("graph", f"{plan.totals.ops} ops, traced by {plan.front_end}"),
            ("break-even", _break_even(plan.break_even_bit_per_s)),
        ),
    )


def _codecs(codecs: Codecs) -> str:
    summed = "as they are" if codecs.gradient == "none" else f"in {codecs.gradient}"
    return f"tensors at the cut as {codecs.boundary}, gradients summed {summed}"


def _cluster(cluster: dict[str, Any]) -> str:
    devices = f"{cluster['nodes']} nodes x {cluster['gpus_per_node']} {cluster['device']}"
    return f"{devices}, {scaled(cluster['bandwidth_bit_per_s'], 'bit/s')}, {cluster['latency_s'] * 1e6:g} us"


def _break_even(bit_per_s: float | None) -> str:
    if bit_per_s is None:
        return "none, no bandwidth changes the verdict"
    return f"{scaled(bit_per_s, 'bit/s')}; separation wins on slower links, data-parallel on faster ones"


def _layers(plan: Plan, graph: OpGraph, *, brief: bool) -> Section:
    every = layers(plan, graph)
    rows = merged(every, limit=BRIEF_LAYERS) if brief else every
    note = "Runs of ops share a row here; report.md has one row per op." if len(rows) < len(every) else ""
    return Section(
        "Layers",
        table=Table(
            ("op", "kind", "line", "FLOPs", "parameters", "side"),
            "lllrrl",
            tuple(_layer_row(row, plan, brief=brief) for row in rows),
        ),
        sentences=(note,) if note else (),
    )


def _layer_row(row: Layer, plan: Plan, *, brief: bool) -> tuple[str, ...]:
    flops = _share_of_flops(row, plan)
    line = row.source.rpartition("/")[2] if brief else row.source
    kinds = ", ".join(row.kinds if len(row.kinds) < 3 else (row.kinds[0], "..."))
    return str(row), kinds, line, flops, share(row.parameter_bytes, plan.totals.parameter_bytes), row.side


def _share_of_flops(row: Layer, plan: Plan) -> str:
    counted = share(row.forward_flops, plan.totals.forward_flops)
    if not row.uncounted:
        return counted
    return "not counted" if row.ops == 1 else f"{counted} + not counted"


def _stages(plan: Plan) -> Section:
    header = ("stage", "ops", "parameters", "size", "FLOPs", "from .. to")
    return Section("Stages", table=Table(header, "lrrrrl", tuple(_stage_row(stage, plan) for stage in plan.stages)))


def _stage_row(stage: Stage, plan: Plan) -> tuple[str, ...]:
    spans = (
        segment[0] if len(segment) == 1 else f"{segment[0]} .. {segment[-1]}" for segment in stage.segments if segment
    )
    return (
        stage.role,
        str(stage.ops),
        f"{stage.parameters:,}",
        scaled(stage.parameter_bytes, "B"),
        share(stage.forward_flops, plan.totals.forward_flops),
        "; ".join(spans),
    )


def _cut(plan: Plan) -> Section:
    if not plan.boundary:
        return Section("What crosses the cut")
    header = ("tensor", "kind", "bytes per sample", "segments", "gradient")
    rows = tuple(_boundary_row(tensor) for tensor in plan.boundary)
    lost = [tensor for tensor in plan.boundary if tensor.codec_error is not None]
    if not lost:
        return Section("What crosses the cut", table=Table(header, "llrll", rows))
    errors = ((_error(tensor.codec_error), _error(tensor.gradient_codec_error)) for tensor in plan.boundary)
    return Section(
        "What crosses the cut",
        table=Table(
            (*header, f"lost as {plan.codecs.boundary}", "of its gradient"),
            "llrllrr",
            tuple((*row, *error) for row, error in zip(rows, errors, strict=True)),
        ),
        sentences=("Lost: the norm of the difference over the norm, in one training step on the example.",),
    )


def _error(share_lost: float | None) -> str:
    return "-" if share_lost is None else f"{share_lost:.2%}"


def _boundary_row(tensor: Boundary) -> tuple[str, ...]:
    return (
        str(tensor).partition("  ")[0],
        tensor.kind,
        f"{tensor.bytes_per_sample:,}",
        f"{tensor.from_segment} to {tensor.to_segment}",
        "returns" if tensor.requires_grad else "none",
    )


def _predictions(plan: Plan) -> Section:
    chosen = plan.allocation.placement if plan.verdict == "separate" else "data_parallel"
    possible = {name: found for name in STRATEGIES if (found := plan.predictions.get(name))}
    absent = ", ".join(_spaced(name) for name in STRATEGIES if name not in possible)
    columns = tuple(possible.values())
    rows = [
        ("ranks", *(_ranks(prediction.allocation) for prediction in columns)),
        *((_spaced(term.removesuffix("_s")), *(milliseconds(each.terms[term]) for each in columns)) for term in TERMS),
        ("step", *(milliseconds(prediction.iteration_s) for prediction in columns)),
        ("samples per step", *(f"{prediction.samples_per_step:,.10g}" for prediction in columns)),
        ("samples per s", *(f"{prediction.samples_per_s:,.1f}" for prediction in columns)),
        ("against data parallel", *(_speedup(prediction, possible.get("data_parallel")) for prediction in columns)),
        ("sent per step", *(scaled(prediction.bytes_per_step, "B") for prediction in columns)),
        ("sent per sample", *(scaled(prediction.bytes_per_sample, "B") for prediction in columns)),
    ]
    header = ("", *(f"{_spaced(name)} (chosen)" if name == chosen else _spaced(name) for name in possible))
    return Section(
        "Predicted time (ms) and traffic of each strategy at its best",
        table=Table(header, "l" + "r" * len(columns), tuple(rows)),
        sentences=(f"Not possible here or not asked for: {absent}.",) if absent else (),
    )


def _orders(plan: Plan) -> Section:
    """Nothing to tell where FC can stand behind CONV alone."""
    rows = tuple(
        (
            price.order,
            _ranks(price.allocation) if price.allocation else "-",
            milliseconds(price.iteration_s) if price.iteration_s is not None else "-",
            f"{price.samples_per_s:,.1f}" if price.samples_per_s is not None else "-",
            price.why,
        )
        for price in plan.orders
    )
    if not rows:
        return Section("Orders of segments")
    header = ("order", "ranks", "ms", "samples per s", "why")
    return Section("Orders of segments", table=Table(header, "llrrl", rows))


def _heavy_parameters(plan: Plan) -> Section:
    title = "What the heaviest parameters cost under data-parallel"
    if not plan.heavy_parameters:
        return Section(title)
    rows = tuple(
        (
            each.name,
            scaled(each.bytes, "B"),
            "dense" if each.rows is None else f"{each.rows:,.10g} rows",
            scaled(each.data_parallel_bytes, "B"),
            milliseconds(each.data_parallel_s),
            each.role,
        )
        for each in plan.heavy_parameters
    )
    header = ("parameter", "size", "gradient of a rank", "sent per step", "ms of a link", "side")
    return Section(
        title,
        table=Table(header, "llrrrl", rows),
        sentences=("Sent by all nodes together; what the backward hides of it still keeps the links busy.",),
    )


def _alternatives(plan: Plan) -> Section:
    if not plan.alternatives:
        return Section("Alternatives that lost")
    rows = (
        (
            _spaced(other.strategy),
            _ranks(other.allocation),
            other.first_fc_op or "-",
            str(other.fc_ops),
            milliseconds(other.iteration_s),
            f"{other.samples_per_s:,.1f}",
            other.why,
        )
        for other in plan.alternatives
    )
    header = ("strategy", "ranks", "FC from", "FC ops", "ms", "samples per s", "why it lost")
    return Section("Alternatives that lost", table=Table(header, "lllrrrl", tuple(rows)))


def _uncounted(graph: OpGraph) -> Section:
    rows = tuple((op.name, op.kind, op.source, ", ".join(op.uncounted)) for op in graph.ops if op.uncounted)
    if not rows:
        return Section("Computation that could not be counted")
    return Section(
        "Computation that could not be counted",
        table=Table(("op", "kind", "line", "what"), "llll", rows),
        sentences=("These ops compute more than the predictions know; --device measure times them.",),
    )


def _certificate(plan: Plan) -> Section:
    certificate = plan.certificate
    if certificate is None:
        return Section("Certificate", sentences=("None: no emitted files were compared with the model.",))
    return Section(
        "Certificate",
        facts=(
            ("emitted files compute what the model computes", "yes" if certificate.passed else "no"),
            ("compared in", ", ".join(certificate.modes)),
            *([("the model itself refuses", ", ".join(certificate.refused))] if certificate.refused else []),
            ("largest difference of outputs", f"{certificate.forward_max_abs_diff:.3g}"),
            ("largest difference of gradients", f"{certificate.gradient_max_abs_diff:.3g}"),
            ("buffers equal", "yes" if certificate.buffers_equal else "no"),
            ("names equal", "yes" if certificate.names_equal else "no"),
        ),
    )


def _ranks(allocation: Allocation) -> str:
    if allocation.placement in ("dedicated", "parameter-server-1"):
        return f"{allocation.conv_workers} + {allocation.fc_workers}"
    if allocation.placement in ("colocated", "sharded"):
        return f"{allocation.conv_workers}, {allocation.fc_workers} FC"
    return str(allocation.conv_workers)


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _speedup(prediction: Prediction, baseline: Prediction | None) -> str:
    return f"{prediction.samples_per_s / baseline.samples_per_s:.2f}x" if baseline and baseline.samples_per_s else "-"
