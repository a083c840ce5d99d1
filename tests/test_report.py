"""What a report says, in markdown."""

from dataclasses import replace

from stanza_compiler.report import build_report, markdown
from tests.small_plan import GRAPH, PLAN


def _section(text: str, title: str) -> list[str]:
    """The lines that stand under a heading, without empty ones."""
    body = text.split(f"## {title}\n")[1].split("\n## ")[0]
    return [line for line in body.splitlines() if line]


def test_the_summary_gives_verdict_reason_and_what_they_rest_on() -> None:
    assert _section(markdown(PLAN, GRAPH), "Verdict") == [
        "- verdict: separate",
        "- reason: 80% faster per sample than data-parallel",
        "- allocation: 9 conv + 1 fc, dedicated",
        "- cluster: 10 nodes x 1 v100, 10 Gbit/s, 50 us",
        "- batch: 64 samples per rank that reads data",
        "- model: 250 parameters (1 kB), 10 kFLOPs forward per sample",
        "- graph: 5 ops, traced by fx",
        "- break-even: 25 Gbit/s; separation wins on slower links, data-parallel on faster ones",
    ]


def test_each_op_has_its_share_and_side() -> None:
    assert _section(markdown(PLAN, GRAPH), "Layers") == [
        "| op | kind | line | FLOPs | parameters | side |",
        "| --- | --- | --- | ---: | ---: | --- |",
        "| body.conv | Conv2d | small.py:7 | 90.0% | 10.0% | conv |",
        "| body.relu | ReLU | small.py:8 | - | - | conv |",
        "| flatten | flatten | small.py:9 | - | - | conv |",
        "| head\\|0 | Linear | small.py:10 | 10.0% | 90.0% | fc |",
        "| lstm | LSTM | small.py:11 | not counted | - | fc |",
    ]


def test_a_brief_report_merges_runs_and_leaves_folders_out() -> None:
    lines = [
        replace(op, name=f"body.{index}.conv", source="lib/net.py:7", forward_flops=360)
        for index, op in enumerate(GRAPH.ops[:1] * 25)
    ]
    conv = replace(PLAN.stages[0], segments=(tuple(op.name for op in lines),))
    graph, plan = replace(GRAPH, ops=(*lines, *GRAPH.ops[3:])), replace(PLAN, stages=(conv, PLAN.stages[1]))
    (layers,) = (section for section in build_report(plan, graph, brief=True).sections if section.title == "Layers")
    assert layers.table is not None
    assert layers.table.rows == (
        ("body (25 ops)", "Conv2d", "net.py:7", "90.0%", "10.0%", "conv"),
        ("head|0 .. lstm (2 ops)", "Linear, LSTM", "small.py:10", "10.0% + not counted", "90.0%", "fc"),
    )
    assert layers.sentences == ("Runs of ops share a row here; report.md has one row per op.",)


def test_stages_and_the_cut_are_tables() -> None:
    text = markdown(PLAN, GRAPH)
    assert _section(text, "Stages")[2:] == [
        "| conv | 3 | 25 | 100 B | 90.0% | body.conv .. flatten |",
        "| fc | 2 | 225 | 900 B | 10.0% | head\\|0 .. lstm |",
    ]
    assert _section(text, "What crosses the cut")[2:] == ["| flatten f32[B, 9] | batched | 36 | 0 to 1 | returns |"]


def test_predictions_are_shown_term_by_term() -> None:
    lines = _section(markdown(PLAN, GRAPH), "Predicted time (ms) and traffic of each strategy at its best")
    # By hand: 900 ms / 9 and 450 ms / 9 a term; 640 / 0.9 s and 576 / 0.45 s; 128 kB / 640 and 57.6 kB / 576.
    assert lines[0] == "|  | data parallel | dedicated (chosen) |"
    assert lines[2:4] == ["| ranks | 10 | 9 + 1 |", "| conv forward | 100.00 | 50.00 |"]
    assert len(lines) == 2 + 1 + 9 + 6 + 1
    assert lines[-7:] == [
        "| step | 900.00 | 450.00 |",
        "| samples per step | 640 | 576 |",
        "| samples per s | 711.1 | 1,280.0 |",
        "| against data parallel | 1.00x | 1.80x |",
        "| sent per step | 128 kB | 57.6 kB |",
        "| sent per sample | 200 B | 100 B |",
        "Not possible here or not asked for: parameter server 1, parameter server n, colocated, sharded.",
    ]


def test_plans_that_lost_and_ops_that_could_not_be_counted_are_listed() -> None:
    text = markdown(PLAN, GRAPH)
    assert _section(text, "Alternatives that lost")[2:] == [
        "| dedicated | 8 + 2 | head\\|0 | 2 | 500.00 | 1,024.0 | more allreduce |"
    ]
    assert (
        _section(text, "Computation that could not be counted")[2] == "| lstm | LSTM | small.py:11 | aten.lstm.input |"
    )
    assert _section(text, "Notes") == ["small.py:8: kept on the conv side"]


def test_the_certificate_or_its_absence_is_told() -> None:
    assert _section(markdown(PLAN, GRAPH), "Certificate") == [
        "- emitted files compute what the model computes: yes",
        "- compared in: train, eval",
        "- largest difference of outputs: 1.5e-07",
        "- largest difference of gradients: 0",
        "- buffers equal: yes",
        "- names equal: yes",
    ]
    bare = markdown(replace(PLAN, certificate=None), GRAPH)
    assert _section(bare, "Certificate") == ["None: no emitted files were compared with the model."]


def test_what_there_is_nothing_to_say_about_has_no_heading() -> None:
    plan = replace(PLAN, boundary=(), alternatives=(), notes=(), break_even_bit_per_s=None)
    graph = replace(GRAPH, ops=GRAPH.ops[:4], outputs=("head|0",))
    text = markdown(plan, graph)
    assert "- break-even: none, no bandwidth changes the verdict" in text
    for title in ("What crosses the cut", "Alternatives that lost", "Computation that could not be counted", "Notes"):
        assert f"## {title}" not in text
