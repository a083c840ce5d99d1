"""Every model of a family compiled, and held against the uncut model in an interpreter of its own.

    python -m benchmarks.zoo --family torchvision [--only NAME,NAME] [--jobs N] [--json FILE]

A model is `equal` when nothing differs, `refused` when the compiler says so in its one line and leaves nothing behind,
and WRONG in every other case. Exit status 0 when none is WRONG and, of a whole family, enough are equal.
"""

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.zoo_models import Model
from benchmarks.zoo_timm import timm_models
from benchmarks.zoo_torchvision import torchvision_models
from benchmarks.zoo_transformers import transformers_models

FAMILIES = {"torchvision": torchvision_models, "transformers": transformers_models, "timm": timm_models}
ENOUGH = {"torchvision": 95, "transformers": 20, "timm": 40}
TIMEOUT_S = 1800
# Asking the system for every gradient's memory anew takes longer than AlexNet's arithmetic.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**35),
    "MALLOC_TOP_PAD_": str(2**28),
}
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one model; None is what a refused one has none of."""

    model: str
    verdict: str  # "equal", "refused" or "WRONG"
    reason: str
    compile_s: float
    parameters: int | None = None
    forward_flops: int | None = None
    cut: str | None = None
    front_end: str | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Check one family; 0 when nothing is WRONG and enough is equal."""
    arguments = _parse(argv)
    models = FAMILIES[arguments.family]()
    chosen = [model for model in models if not arguments.only or model.name in arguments.only]
    unknown = set(arguments.only) - {model.name for model in models}
    if unknown:
        print(f"{arguments.family} has no {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    rows = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(check, chosen):
            print(f"{row.verdict:8} {row.model}  {row.compile_s:.0f} s  {row.reason}", file=sys.stderr, flush=True)
            rows.append(row)
    counts = Counter(row.verdict for row in rows)
    Console(width=None if sys.stdout.isatty() else 200).print(_table(arguments.family, rows))
    numbers = f"{counts['equal']} of {len(rows)} equal, {counts['refused']} refused, {counts['WRONG']} WRONG"
    print(f"{arguments.family}: {numbers}")
    if arguments.json:
        versions = {name: metadata.version(name) for name in ("torch", arguments.family)}
        content = {"family": arguments.family, "versions": versions, "counts": counts}
        content["models"] = [dataclasses.asdict(row) for row in rows]
        arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return int(counts["WRONG"] > 0 or (not arguments.only and counts["equal"] < ENOUGH[arguments.family]))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], metavar="NAME,NAME")
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


def check(model: Model) -> Row:
    """Compile one model in a temporary folder and compare what was emitted."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "model.py", Path(folder) / "out"
        file.write_text(model.file, encoding="utf-8")
        command = [sys.executable, "-m", "stanza_compiler", f"{file}:build_model"]
        start = time.perf_counter()
        done = _run([*command, "--strategy", "separate", "--force", "-o", str(out)], folder)
        seconds = time.perf_counter() - start
        if done.returncode != 0:
            return Row(model.name, *_failure(done, out), seconds)
        plan = json.loads((out / "plan.json").read_text(encoding="utf-8"))
        problems, parameters = compare(file, out)
        if not plan["certificate"]["passed"]:
            problems.insert(0, "the certificate did not pass")
        return Row(
            model.name,
            "WRONG" if problems else "equal",
            "; ".join(problems[:4]),
            seconds,
            parameters,
            plan["totals"]["forward_flops"],
            _cut(plan),
            plan["front_end"],
        )


def compare(model_file: Path, out: Path) -> tuple[list[str], int]:
    """The differences that a fresh interpreter without the compiler finds, and the model's parameters."""
    script = Path(__file__).with_name("zoo_compare.py")
    done = _run([sys.executable, str(script), str(model_file), str(out)], str(out.parent))
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
        return list(answer["problems"]), int(answer["parameters"])
    except (IndexError, ValueError):
        return [f"the comparison ended with {done.returncode}: {_last_line(done.stderr)}"], 0


def _run(command: list[str], folder: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, or to the end of its time: then its status is 124."""
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **KEEP_MEMORY}
    try:
        return subprocess.run(
            command, cwd=folder, env=os.environ | own, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no end within {TIMEOUT_S} s")


def _failure(done: subprocess.CompletedProcess[str], out: Path) -> tuple[str, str]:
    """Verdict and reason of a compile that failed; to be refused is one line and no folder, and no bug."""
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    said = errors[0].removeprefix("error: ") if errors else _last_line(done.stderr)
    if (
        done.returncode == 1
        and len(errors) == 1
        and not out.exists()
        and not re.search(r"\bbug\b|Traceback", done.stderr)
    ):
        return "refused", said
    return "WRONG", f"exit {done.returncode}: {said}"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["nothing on stderr"])[-1]


def _cut(plan: dict[str, Any]) -> str:
    """The last op in front of the cut."""
    conv = next(stage for stage in plan["stages"] if stage["role"] == "conv")
    return str(conv["segments"][0][-1])


def _table(family: str, rows: list[Row]) -> Table:
    table = Table(title=family, title_justify="left")
    for header in ("model", "verdict"):
        table.add_column(header, no_wrap=True)
    for header in ("compile s", "parameters", "GFLOPs"):
        table.add_column(header, justify="right", no_wrap=True)
    for header in ("cut after", "front-end", "reason"):
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(
            row.model,
            row.verdict,
            f"{row.compile_s:.1f}",
            "" if row.parameters is None else f"{row.parameters:,}",
            "" if row.forward_flops is None else f"{row.forward_flops / 1e9:.2f}",
            row.cut or "",
            row.front_end or "",
            row.reason,
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
