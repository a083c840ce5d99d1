"""Who is rehearsed: the generated program itself, and other ways to train the same model."""

from dataclasses import dataclass
from pathlib import Path

from stanza_compiler.rehearse.options import Options

PROGRAM = "stanza"
PACKAGE = "stanza_compiler.rehearse.peers"
# Module, and what else its command line says.
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
    """`command` is what Python is given."""

    name: str
    command: tuple[str, ...]


def contenders(options: Options, global_batch_size: int) -> tuple[Contender, ...]:
    """The program first, then the peers, all on the same global batch."""
    out = options.emitted.folder
    common = ("--global-batch-size", str(global_batch_size), "--timeout", f"{options.timeout_s:g}")
    found = [Contender(PROGRAM, (str(out / "train.py"), *common))]
    for name in options.against:
        module, *flags = PEERS[name]
        found.append(Contender(name, ("-m", f"{PACKAGE}.{module}", *flags, str(out), *common)))
    return tuple(found)


def complete(contender: Contender, *, steps: int, metrics: Path) -> tuple[str, ...]:
    """Its command line for a run of so many steps that tells of them in `metrics`."""
    return (*contender.command, "--steps", str(steps), "--metrics", str(metrics))
