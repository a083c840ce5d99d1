"""How a model's training grows with the hosts, and what the planner expects beyond those that this machine emulates.

    python -m benchmarks.scaling alexnet --input 64 --batch 32 --hosts 2,3,4,5,6,8 --beyond 16,32,64 -o FOLDER

Each number of hosts is planned anew, rehearsed against DistributedDataParallel on links of the same bandwidth, and
priced by the planner for its device `cpu`, or for --host-cpus of it. FOLDER/scaling.json and scaling.md are written.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.programs import MODELS, WAYS, Model, compiled, plan_of
from stanza_compiler.document import Document, Section, Table
from stanza_compiler.document_markdown import render_markdown
from stanza_compiler.progress import progress
from stanza_compiler.quantities import bandwidth
from stanza_compiler.rehearse.contenders import PROGRAM
from stanza_compiler.rehearse.emitted import Emitted
from stanza_compiler.rehearse.options import Options
from stanza_compiler.rehearse.rehearsal import rehearse
from stanza_compiler.rehearse.signals import unwinding

PEER = "ddp"


def main(argv: Sequence[str] | None = None) -> None:
    """Compile for each number of hosts, rehearse those that can be, write."""
    asked = _parse(argv)
    model, bit_per_s = Model(asked.model, asked.input, asked.batch), bandwidth("--bandwidth", asked.bandwidth)
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="stanza-scaling-") as scratch, progress("compiling") as show:
        for hosts in (*asked.hosts, *asked.beyond):
            show(f"compiling for {hosts} hosts")
            out = Path(scratch, f"hosts{hosts}")
            emitted = compiled(model, WAYS[asked.way], hosts, bit_per_s, out, host_cpus=asked.host_cpus)
            line: dict[str, Any] = {"hosts": hosts, "plan": plan_of(emitted), **_predicted(emitted)}
            if hosts in asked.hosts:
                line |= {"rehearsed": asdict(rehearse(_options(asked, emitted, hosts, bit_per_s), show=show))}
            lines.append(line)
    asked.out.mkdir(parents=True, exist_ok=True)
    figures = {"asked": {name: str(value) for name, value in vars(asked).items()}, "lines": lines}
    (asked.out / "scaling.json").write_text(json.dumps(figures, indent=1), encoding="utf-8")
    table = Section(f"{asked.bandwidth} links, {asked.batch} samples a host", table=_table(lines))
    text = render_markdown(Document(f"{asked.model} on more and more hosts", (table,)))
    (asked.out / "scaling.md").write_text(text, encoding="utf-8")
    print(text)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description="samples/s by hosts")
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--input", type=int, default=64, help="pixels of an image's side")
    parser.add_argument("--batch", type=int, default=32, help="samples a host and step")
    parser.add_argument("--hosts", type=_numbers, default=_numbers("2,3,4,5,6,8"), help="to be emulated")
    parser.add_argument("--beyond", type=_numbers, default=_numbers("16,32,64"), help="to be priced alone")
    parser.add_argument("--way", choices=WAYS, default=PROGRAM)
    parser.add_argument("--bandwidth", default="200Mbit")
    parser.add_argument("--host-cpus", type=float)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument(
        "--patience", type=float, default=40.0, help="seconds after which two steps of a run are enough"
    )
    parser.add_argument("-o", "--out", type=Path, required=True)
    return parser.parse_args(argv)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each)


def _options(asked: argparse.Namespace, emitted: Emitted, hosts: int, bit_per_s: float) -> Options:
    return Options(
        emitted=emitted,
        hosts=hosts,
        bit_per_s=bit_per_s,
        latency_s=None,
        host_cpus=asked.host_cpus,
        beside=(),
        against=(PEER,),
        rounds=1,
        steps=asked.steps,
        warm_up=1,
        bounds=False,
        global_batch_size=asked.batch * hosts,
        patience_s=asked.patience,
        timeout_s=600.0,
        as_json=False,
    )


def _predicted(emitted: Emitted) -> dict[str, float]:
    """Samples a second that the planner expects of its choice and of data-parallel training."""
    predictions = emitted.plan["predictions"]
    separate = emitted.plan["verdict"] == "separate"
    chosen = predictions[emitted.plan["allocation"]["placement"]] if separate else predictions["data_parallel"]
    return {
        "predicted_samples_per_s": chosen["samples_per_s"],
        "predicted_ddp_samples_per_s": predictions["data_parallel"]["samples_per_s"],
    }


def _table(lines: Sequence[dict[str, Any]]) -> Table:
    header = ("hosts", "plan", "samples/s", "DDP", "ratio", "planner: samples/s", "DDP", "ratio")
    rows = []
    for line in lines:
        ours, ddp = line["predicted_samples_per_s"], line["predicted_ddp_samples_per_s"]
        measured = ["", "", ""]
        if "rehearsed" in line:
            program, peer = (_samples_per_s(each) for each in line["rehearsed"]["outcomes"])
            measured = (
                [f"{program:.4g}", f"{peer:.4g}", f"{program / peer:.2f}x"] if peer else [f"{program:.4g}", "", ""]
            )
        rows.append((str(line["hosts"]), line["plan"], *measured, f"{ours:.4g}", f"{ddp:.4g}", f"{ours / ddp:.2f}x"))
    return Table(header, "rlrrrrrr", tuple(rows))


def _samples_per_s(outcome: dict[str, Any]) -> float:
    """0 for a peer that failed."""
    summary = outcome["summary"]
    return float(summary["samples_per_step"] / summary["step_s"]["median"]) if summary else 0.0


if __name__ == "__main__":
    with unwinding():
        main()
