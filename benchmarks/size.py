"""How long a compile takes, pass by pass, as models grow: `python -m benchmarks.size [--trace export] [--emit]`."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

SIZES = (1_250, 2_500, 5_000, 10_000)

MODELS = {
    "chain": """
import torch
from torch import nn


def build_model():
    return nn.Sequential(*(layer for _ in range({ops} // 2) for layer in (nn.Linear(64, 64), nn.ReLU())))
""",
    "residual": """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def build_model():
    return nn.Sequential(*(Block() for _ in range({ops} // 5)))
""",
    "functional": """
import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range({ops} // 4))

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x) * 0.5).tanh()
        return x


def build_model():
    return Model()
""",
}
EXAMPLE = """

def example_inputs():
    return (torch.randn(4, 64),)
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One compile in a process of its own: wall and CPU seconds of all of it, wall seconds of each pass."""

    model: str
    ops: int
    wall_s: float
    cpu_s: float
    peak_bytes: int
    passes_s: dict[str, float]


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--emit", action="store_true", help="write the program too, which --dry-run leaves out")
    parser.add_argument("--trace", choices=("fx", "export"), default="fx", help="the front-end")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=tuple(MODELS))
    options = parser.parse_args(argv)
    figures = []
    for model in options.models:
        for ops in options.sizes:
            figures.append(_measured(model, ops, options.trace, emit=options.emit))
            _print(figures[-1], with_header=ops == options.sizes[0])
    if options.json:
        options.json.write_text(json.dumps(list(map(asdict, figures)), indent=2) + "\n", encoding="utf-8")


def _measured(model: str, ops: int, front_end: str, *, emit: bool) -> Measured:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.py").write_text(MODELS[model].replace("{ops}", str(ops)) + EXAMPLE, encoding="utf-8")
        request = ["model.py", "--no-verify", "--trace", front_end, *([] if emit else ["--dry-run"])]
        command = [sys.executable, str(Path(__file__).resolve()), "--child", "passes.json", *request]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{model} of {ops} ops: exit status {process.returncode}")
        passes_s = json.loads((folder / "passes.json").read_text(encoding="utf-8"))
    # Linux counts the peak in units of 1,024 bytes.
    return Measured(model, ops, wall_s, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss, passes_s)


def _print(measured: Measured, *, with_header: bool) -> None:
    titles = ["model", "ops", "wall s", "CPU s", "peak MB", *measured.passes_s]
    if with_header:
        print(f"\n| {' | '.join(titles)} |\n| --- |{' ---: |' * (len(titles) - 1)}")
    figures = [
        f"{measured.ops:,}",
        f"{measured.wall_s:.1f}",
        f"{measured.cpu_s:.1f}",
        f"{measured.peak_bytes / 1e6:.0f}",
    ]
    print(
        f"| {' | '.join([measured.model, *figures, *(f'{s:.2f}' for s in measured.passes_s.values())])} |", flush=True
    )


def _child(passes: Path, argv: Sequence[str]) -> int:
    """The command line itself, with every pass's seconds noted."""
    # Imported here: what the parent holds counts towards the peak of a process that it starts.
    from stanza_compiler import cli, compiler
    from stanza_compiler.options import Options

    seconds: dict[str, float] = {}
    compile_source = compiler.compile_source

    def noting(options: Options, *, on_pass: compiler.OnPass | None = None) -> compiler.Compilation:
        def both(name: str, result: object, pass_s: float) -> None:
            seconds[name] = pass_s
            if on_pass is not None:
                on_pass(name, result, pass_s)

        return compile_source(options, on_pass=both)

    compiler.compile_source = noting
    status = cli.main(argv)
    passes.write_text(json.dumps(seconds), encoding="utf-8")
    return status


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        raise SystemExit(_child(Path(sys.argv[2]), sys.argv[3:]))
    main(sys.argv[1:])
