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
from dataclasses import asdict, dataclass
from pathlib import Path

from stanza_compiler.cluster import DEVICES, Cluster
from stanza_compiler.codecs import PLAIN, Codecs
from stanza_compiler.compiler import compile_source
from stanza_compiler.document import Document, Section, Table
from stanza_compiler.document_markdown import render_markdown
from stanza_compiler.errors import StanzaError
from stanza_compiler.options import Options as CompileOptions
from stanza_compiler.plan import Request
from stanza_compiler.progress import progress
from stanza_compiler.quantities import bandwidth
from stanza_compiler.rehearse.contenders import PEERS, PROGRAM
from stanza_compiler.rehearse.emitted import Emitted, read_emitted
from stanza_compiler.rehearse.options import Options
from stanza_compiler.rehearse.rehearsal import Rehearsed, rehearse
from stanza_compiler.rehearse.summary import Summary
from stanza_compiler.rehearse.tables import bound_s, build_document

EXAMPLES = Path(__file__).parents[1] / "examples"

HOOKS = """

def example_targets():
    return torch.arange({batch}) % 1000


def loss_fn(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets)


def make_optimizer(params):
    return torch.optim.SGD(params, lr=0.01, momentum=0.9)
"""

IMAGES = """
import torch
from torchvision.models import {network}


def build_model():
    return {network}(weights=None{arguments})


def example_inputs():
    return (torch.randn({batch}, 3, {pixels}, {pixels}),)
"""

MLP = """
import torch
from torch import nn


def build_model():
    body = (layer for _ in range(3) for layer in (nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()))
    head = (nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))
    return nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *body, nn.AdaptiveAvgPool2d(8), nn.Flatten(), *head)


def example_inputs():
    return (torch.randn({batch}, 3, {pixels}, {pixels}),)
"""

SOURCES = {
    "alexnet": IMAGES.replace("{network}", "alexnet").replace("{arguments}", ", dropout=0.0") + HOOKS,
    "vgg16": IMAGES.replace("{network}", "vgg16").replace("{arguments}", ", dropout=0.0") + HOOKS,
    "resnet50": IMAGES.replace("{network}", "resnet50").replace("{arguments}", "") + HOOKS,
    "mlp": MLP + HOOKS,
}
MODELS = (*SOURCES, "gpt_small", "lstm_lm", "dlrm", "face_head")

HALVED = Codecs(boundary="bf16", gradient="fp16")


@dataclass(frozen=True, slots=True)
class Way:
    """How to compile a model."""

    strategy: str = "auto"
    placement: str = "auto"
    codecs: Codecs = PLAIN


WAYS = {
    PROGRAM: Way(),
    "chosen-16bit": Way(codecs=HALVED),
    "dedicated": Way("separate", "dedicated"),
    "colocated": Way("separate", "colocated"),
    "sharded": Way("separate", "sharded"),
    "dedicated-16bit": Way("separate", "dedicated", HALVED),
    "colocated-16bit": Way("separate", "colocated", HALVED),
    "sharded-16bit": Way("separate", "sharded", HALVED),
}
EVERY_DAY = "chosen-16bit,dedicated,colocated,sharded"


def main(argv: Sequence[str] | None = None) -> None:
    """Compile, rehearse, write."""
    asked = _parse(argv)
    cluster = Cluster(
        nodes=asked.hosts, bandwidth_bit_per_s=bandwidth("--bandwidth", asked.bandwidth), device=DEVICES["cpu"]
    )
    with tempfile.TemporaryDirectory(prefix="stanza-peers-") as scratch, progress("compiling") as show:
        programs, refused = [], []
        for name in dict.fromkeys((PROGRAM, *filter(None, asked.ways.split(",")))):
            show(f"compiling {name}")
            try:
                programs.append(_compiled(asked, WAYS[name], cluster, Path(scratch), name))
            except StanzaError as error:
                refused.append(f"{name}: {error}")
        options = Options(
            emitted=programs[0],
            hosts=asked.hosts,
            bit_per_s=cluster.bandwidth_bit_per_s,
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


def _compiled(asked: argparse.Namespace, way: Way, cluster: Cluster, scratch: Path, name: str) -> Emitted:
    source = EXAMPLES / f"{asked.model}.py"
    if asked.model in SOURCES:
        source = scratch / f"{asked.model}.py"
        source.write_text(SOURCES[asked.model].format(batch=asked.batch, pixels=asked.input), encoding="utf-8")
    request = Request(
        strategy=way.strategy,
        placement=way.placement,
        global_batch_size=asked.batch * asked.hosts,
        codecs=way.codecs,
    )
    out = scratch / name
    compile_source(CompileOptions(str(source), out=out, cluster=cluster, request=request, verify=False))
    return read_emitted(out)


def _write(asked: argparse.Namespace, options: Options, rehearsed: Rehearsed, refused: list[str]) -> None:
    asked.out.mkdir(parents=True, exist_ok=True)
    plans = {each.folder.name: _plan(each) for each in (options.emitted, *options.beside)}
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


def _plan(emitted: Emitted) -> str:
    plan = emitted.plan
    allocation = plan["allocation"]
    if plan["verdict"] == "data-parallel":
        return "data-parallel"
    hosts = f"{allocation['conv_workers']} conv, {allocation['fc_workers']} fc, {allocation['placement']}"
    return f"{hosts}, {plan['boundary_dtype']}/{plan['gradient_codec']}"


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
    main()
