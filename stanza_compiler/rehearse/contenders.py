"""Who is rehearsed: the generated program itself, and other ways to train the same model."""

from dataclasses import dataclass
from pathlib import Path

from stanza_compiler.rehearse.options import Options

HERE = Path(__file__).parent
PROGRAM = "stanza"
# The script, and what else its command line says.
PEERS: dict[str, tuple[str, ...]] = {
    "ddp": ("ddp",),
    "ddp-fp16": ("ddp", "--hook", "fp16"),
    "ddp-bf16": ("ddp", "--hook", "bf16"),
    "ddp-powersgd": ("ddp", "--hook", "powersgd"),
    "ps1": ("parameter_server", "--servers", "one"),
    "psn": ("parameter_server", "--servers", "all"),
    "fsdp": ("fsdp",),
    "fsdp-keep": ("fsdp", "--keep"),
    "pipeline": ("pipeline",),
}


@dataclass(frozen=True, slots=True)
class Contender:
    """`command` is a script and its flags."""

    name: str
    command: tuple[str, ...]


def contenders(options: Options, global_batch_size: int) -> tuple[Contender, ...]:
    """The program first, then others by the names of their folders, then the peers, all on the same global batch."""
    out = options.emitted.folder
    common = ("--global-batch-size", str(global_batch_size), "--timeout", f"{options.timeout_s:g}")
    programs = [(PROGRAM, out), *((each.folder.name, each.folder) for each in options.beside)]
    found = [Contender(name, (str(folder / "train.py"), *common)) for name, folder in programs]
    for name in options.against:
        script, *flags = PEERS[name]
        found.append(Contender(name, (str(HERE / "peers" / f"{script}.py"), *flags, str(out), *common)))
    return tuple(found)


def command(contender: Contender, *, steps: int, metrics: Path, answer_sums: Path | None) -> tuple[str, ...]:
    """Its command line for a run of so many steps; with sums answered on the spot, notes go to `answer_sums`."""
    run = (*contender.command, "--steps", str(steps), "--metrics", str(metrics))
    return (str(HERE / "without_sums.py"), str(answer_sums), *run) if answer_sums is not None else run
