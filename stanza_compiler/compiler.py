"""The passes in order."""

import dataclasses
import hashlib
import importlib.util
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stanza_compiler import report
from stanza_compiler.codecs import PLAIN
from stanza_compiler.errors import EmitError, UsageError
from stanza_compiler.loader import Source, load
from stanza_compiler.opgraph import OpGraph
from stanza_compiler.options import Options
from stanza_compiler.passes.certify import certify
from stanza_compiler.passes.codec_error import codec_error
from stanza_compiler.passes.coupling import Coupling, coupling
from stanza_compiler.passes.emit import emit, readme
from stanza_compiler.passes.legality import legality
from stanza_compiler.passes.measure import measure
from stanza_compiler.passes.partition import partition
from stanza_compiler.passes.profile import profile
from stanza_compiler.passes.split import split
from stanza_compiler.passes.trace import trace
from stanza_compiler.plan import SCHEMA_VERSION, Plan, to_json
from stanza_compiler.shardable import shardable
from stanza_compiler.traced import Trace
from stanza_compiler.update_trial import of_parameters

T = TypeVar("T")
OnPass = Callable[[str, object, float], None]

PASSES = ("load", "trace", "profile", "legality", "partition", "split", "emit", "certify")


@dataclass(frozen=True, slots=True)
class Compilation:
    """A finished compile: the decision, what it was made from, and the folder (None on a dry run)."""

    plan: Plan
    graph: OpGraph
    out: Path | None


def compile_source(options: Options, *, on_pass: OnPass | None = None) -> Compilation:
    """Compile SOURCE into a folder; `on_pass(name, result, seconds)` is told of every pass.

    Raises a subclass of StanzaError for every mistake of the user's; the folder is then as it was before.
    """
    out = _target(options)
    if options.onnx and importlib.util.find_spec("onnxscript") is None:
        raise UsageError("--onnx", "torch.onnx needs the package onnxscript", "install it, or leave out --onnx")
    run = _Timer(on_pass)
    with load(options) as source:
        run.tell("load", source)
        return _compile(options, source, out, run)


class _Timer:
    """Runs passes and tells how long each took."""

    def __init__(self, on_pass: OnPass | None) -> None:
        self.on_pass = on_pass
        self.start = time.perf_counter()

    def tell(self, name: str, result: T) -> T:
        now = time.perf_counter()
        if self.on_pass is not None:
            self.on_pass(name, result, now - self.start)
        self.start = now
        return result


def _compile(options: Options, source: Source, out: Path, run: _Timer) -> Compilation:
    traced = run.tell("trace", trace(source, front_end=options.trace, verify=options.verify, leaves=options.leaves))
    profiled = profile(source, traced)
    if options.measure:
        profiled = dataclasses.replace(profiled, graph=measure(source, traced, profiled.graph))
    run.tell("profile", profiled)
    graph = profiled.graph
    coupled = coupling(source, traced, graph) if options.verify else Coupling(notes=(_UNTESTED,))
    rules = dataclasses.replace(legality(profiled, traced.root, coupled), shardable=shardable(source, traced, graph))
    run.tell("legality", rules)
    plan = run.tell("partition", partition(graph, rules, options.cluster, options.request))
    alone = of_parameters(source) if plan.verdict == "separate" else ()
    plan = dataclasses.replace(plan, notes=(*source.notes, *_how_traced(traced), *plan.notes, *alone))
    stages = run.tell("split", split(traced, plan, graph))
    plan = dataclasses.replace(
        plan,
        source=source.basename,
        model_hash=_model_hash(graph),
        front_end=traced.front_end,
        requires=("torch",),
        state_dict=tuple(source.module.state_dict()),
    )
    if options.verify and plan.codecs.boundary != PLAIN.boundary and plan.boundary:
        plan = codec_error(source, traced, plan)
    if options.dry_run:
        return Compilation(plan, graph, None)
    with _folder(out, force=options.force) as folder:
        plan = dataclasses.replace(plan, requires=run.tell("emit", emit(source, traced, graph, stages, plan, folder)))
        if options.verify:
            plan = dataclasses.replace(plan, certificate=run.tell("certify", certify(source, folder)))
        if options.onnx:
            from stanza_compiler.onnx_export import (
                export_onnx,
            )  # here, because onnx takes a tenth of a second to import

            export_onnx(source, traced, graph, plan, folder)
        _write_reports(folder, plan, graph)
    return Compilation(plan, graph, out)


def _how_traced(traced: Trace) -> Iterator[str]:
    if traced.why:
        yield f"traced by torch.export, because {traced.why}"
    for path, why in traced.opaque.items():
        yield f"{path} is kept whole, as the model's own class, and sees the batch of the rank that runs it: {why}"


_UNTESTED = "--no-verify: neither the trace nor the program was compared with the model"


def _model_hash(graph: OpGraph) -> str:
    """A hash of what the model computes: its ops, shapes and parameter names, not its weights."""
    parameters = "\n".join(f"{item.name} {item.shape} {item.dtype}" for item in graph.parameters)
    return hashlib.sha256(f"{graph}\n{parameters}".encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _write_reports(folder: Path, plan: Plan, graph: OpGraph) -> None:
    files = {path.name for path in folder.iterdir()}
    _write(folder / "plan.json", to_json(plan))
    _write(folder / "report.md", report.markdown(plan, graph))
    _write(folder / "README.md", readme(plan, files))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="backslashreplace")  # a name may hold half a surrogate pair


def _target(options: Options) -> Path:
    """The folder to write, checked before any work is done."""
    stem = options.source.rpartition(":")[0] or options.source
    stem = Path(stem).stem if stem.endswith((".py", ".onnx")) else stem.rpartition(".")[2]
    out = options.out or Path(f"{stem}_stanza")
    if options.dry_run or not out.exists():
        if not options.dry_run and not out.resolve().parent.is_dir():
            raise UsageError(str(out), "its parent folder does not exist", "create it first")
        return out
    if not options.force:
        raise UsageError(str(out), "exists already", "pass --force to replace it or -o another folder")
    if not _is_ours(out):
        raise UsageError(str(out), "exists and holds no plan.json of ours", "pass -o another folder")
    return out


def _is_ours(out: Path) -> bool:
    plan = out / "plan.json"
    return (
        plan.is_file()
        and f'"schema_version": {SCHEMA_VERSION}' in plan.read_text(encoding="utf-8", errors="replace")[:200]
    )


@contextmanager
def _folder(out: Path, *, force: bool) -> Iterator[Path]:
    """A folder beside `out` that takes its place when everything went well and vanishes otherwise."""
    workshop = out.resolve().parent / f".{out.name}.{uuid.uuid4().hex[:8]}"
    folder = workshop / out.name
    try:
        folder.mkdir(parents=True)
        yield folder
        if out.exists() and force:
            out.rename(workshop / "replaced")
        folder.rename(out)
    except OSError as error:
        raise EmitError(
            str(out), f"can't be written: {error.strerror or error}", "free space or choose another folder"
        ) from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
