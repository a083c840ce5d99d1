"""Programs of this compiler against what a user would pick instead, on the same links, data and global batch.

    python -m benchmarks.peers alexnet --input 64 --batch 32 --hosts 5 --bandwidth 200Mbit -o FOLDER

Compiles one model in several ways, runs all of them and the peers on emulated hosts in one rehearsal, and writes
FOLDER/peers.json and FOLDER/peers.md. The first program, `stanza`, is what the planner takes by itself.
Dropout is off: its masks cost the processor as much as a layer, and every contender alike.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.programs import MODELS, WAYS, Model, compiled, plan_of
from stanza_compiler.document import Document, Section, Table
from stanza_compiler.document_markdown import render_markdown
from stanza_compiler.errors import StanzaError
from stanza_compiler.progress import progress
from stanza_compiler.quantities import bandwidth
from stanza_compiler.rehearse.contenders import PEERS, PROGRAM
from stanza_compiler.rehearse.options import Options
from stanza_compiler.rehearse.rehearsal import Rehearsed, rehearse
from stanza_compiler.rehearse.signals import unwinding
from stanza_compiler.rehearse.summary import Summary
from stanza_compiler.rehearse.tables import bound_s, build_document

EVERY_DAY = "chosen-16bit,dedicated,colocated,sharded"


def main(argv: Sequence[str] | None = None) -> None:
    """Compile, rehearse, write."""
    asked = _parse(argv)
    model, bit_per_s = Model(asked.model, asked.input, asked.batch), bandwidth("--bandwidth", asked.bandwidth)
    with tempfile.TemporaryDirectory(prefix="stanza-peers-") as scratch, progress("compiling") as show:
        programs, refused = [], []
        for name in dict.fromkeys((PROGRAM, *filter(None, asked.ways.split(",")))):
            show(f"compiling {name}")
            try:
                out = Path(scratch, name)
                programs.append(compiled(model, WAYS[name], asked.hosts, bit_per_s, out, host_cpus=asked.host_cpus))
            except StanzaError as error:
                refused.append(f"{name}: {error}")
        options = Options(
            emitted=programs[0],
            hosts=asked.hosts,
            bit_per_s=bit_per_s,
            latency_s=None,
            host_cpus=asked.host_cpus,
            beside=tuple(programs[1:]),
            against=tuple(filter(None, asked.against.split(","))),
            rounds=asked.rounds,
            steps=asked.steps,
            warm_up=asked.warm_up,
            bounds=asked.bounds,
            global_batch_size=asked.batch * asked.hosts,
            patience_s=asked.patience,
            timeout_s=600.0,
            as_json=False,
        )
        rehearsed = rehearse(options, show=show)
    _write(asked, options, rehearsed, refused)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="ours against the usual ways")
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--input", type=int, default=64, help="pixels of an image's side")
    parser.add_argument("--batch", type=int, default=32, help="samples a rank and step")
    parser.add_argument("--hosts", type=int, default=5)
    parser.add_argument("--bandwidth", default="200Mbit")
    parser.add_argument("--host-cpus", type=float)
    parser.add_argument("--ways", default=EVERY_DAY, help=f"besides {PROGRAM}, the chosen one, of {', '.join(WAYS)}")
    parser.add_argument("--against", default=",".join(PEERS), help="peers")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds after which two steps of a run are enough"
    )
    parser.add_argument("--bounds", action="store_true", help="run each without limits on the links as well")
    parser.add_argument("-o", "--out", type=Path, required=True)
    return parser.parse_args(argv)


def _write(asked: argparse.Namespace, options: Options, rehearsed: Rehearsed, refused: list[str]) -> None:
    asked.out.mkdir(parents=True, exist_ok=True)
    plans = {each.folder.name: plan_of(each) for each in (options.emitted, *options.beside)}
    figures = {
        "asked": {name: str(value) for name, value in vars(asked).items()},
        "plans": plans,
        "refused": refused,
        **asdict(rehearsed),
    }
    (asked.out / "peers.json").write_text(json.dumps(figures, indent=1), encoding="utf-8")
    document = build_document(options, rehearsed)
    table = Section("Ratios", table=_ratios(options, rehearsed, plans), sentences=tuple(refused))
    whole = Document(document.title, (document.sections[0], table, *document.sections[1:]))
    (asked.out / "peers.md").write_text(render_markdown(whole), encoding="utf-8")
    print(render_markdown(whole))


def _ratios(options: Options, rehearsed: Rehearsed, plans: dict[str, str]) -> Table:
    """Each contender's samples a second and bytes on the wire, beside those of the fastest of our programs."""
    rows = []
    measured = [(each, each.summary) for each in rehearsed.outcomes if each.summary is not None]
    ours = [summary for each, summary in measured if each.name in plans]
    fastest = max(ours, key=_rate)
    for outcome, summary in measured:
        bound = bound_s(outcome, options.bit_per_s)
        rows.append(
            (
                outcome.name,
                plans.get(outcome.name, ""),
                f"{summary.samples_per_s:.4g}",
                f"{fastest.samples_per_s / summary.samples_per_s:.2f}x",
                f"{summary.wire_bytes_per_sample / 1e3:,.1f}",
                f"{summary.wire_bytes_per_sample / fastest.wire_bytes_per_sample:.2f}x",
                f"{summary.step_s.median / bound:.2f}" if bound else "",
            )
        )
    header = ("", "plan", "samples/s", "fastest is", "kB a sample", "of the fastest's", "step / bound")
    return Table(header, "llrrrrr", tuple(rows))


def _rate(summary: Summary) -> float:
    return summary.samples_per_s


if __name__ == "__main__":
    with unwinding():
        main()
