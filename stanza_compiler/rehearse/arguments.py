"""The command line of `stanza-rehearse`, turned into Options."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from stanza_compiler.errors import UsageError
from stanza_compiler.quantities import bandwidth, did_you_mean, latency, one_of, positive_integer
from stanza_compiler.rehearse.contenders import PEERS, PROGRAM
from stanza_compiler.rehearse.emitted import Emitted, read_emitted
from stanza_compiler.rehearse.options import Options

# The parser's own complaints. Which package defines their class depends on typer's version.
ParserComplaint: type[Exception] = typer.BadParameter.__bases__[0]
MOST_HOSTS = 250

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def parse(argv: Sequence[str] | None = None) -> Options | None:
    """The checked command line, None when it only asked for help; sys.argv when `argv` is None.

    Raises UsageError.
    """
    try:
        options = typer.main.get_command(app).main(argv, prog_name="stanza-rehearse", standalone_mode=False)
    except ParserComplaint as complaint:
        raise _usage_error(complaint) from complaint
    return options if isinstance(options, Options) else None


def _usage_error(complaint: Any) -> UsageError:
    """The parser's complaint as PLACE: WHAT; REMEDY. `complaint` is of a class that typer doesn't name."""
    option = getattr(complaint, "option_name", None)
    if isinstance(complaint, typer.BadParameter):
        return UsageError("OUT", "missing", "pass a folder that stanza-compile wrote, see stanza-rehearse --help")
    remedy = did_you_mean(option or "", getattr(complaint, "possibilities", None) or ())
    return UsageError(option or "command line", complaint.message.rstrip("."), f"{remedy}see stanza-rehearse --help")


@app.command()
def stanza_rehearse(
    out: Annotated[str, typer.Argument(metavar="OUT", help="a folder that stanza-compile wrote")],
    hosts: Annotated[str | None, typer.Option(metavar="N", help="emulated machines (the plan's)")] = None,
    bandwidth_: Annotated[
        str | None, typer.Option("--bandwidth", metavar="RATE", help="of a host's link, each way (the plan's)")
    ] = None,
    latency_: Annotated[
        str | None, typer.Option("--latency", metavar="TIME", help="added to each packet (none)")
    ] = None,
    host_cpus: Annotated[
        str | None, typer.Option(metavar="X", help="processors that a host may use, like 0.4 (all of them)")
    ] = None,
    beside: Annotated[
        str | None, typer.Option(metavar="OUT2,...", help="other programs for the same model, to be run as well")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="PEERS", help=f"comma-separated, of {', '.join(PEERS)}; all for each of them")
    ] = None,
    rounds: Annotated[str, typer.Option(metavar="N", help="runs of each, in shuffled order")] = "1",
    steps: Annotated[str, typer.Option(metavar="N", help="steps to measure in each run")] = "10",
    warm_up: Annotated[str, typer.Option(metavar="N", help="steps before them")] = "3",
    bounds: Annotated[bool, typer.Option("--bounds", help="run each without limits on the links as well")] = False,
    global_batch_size: Annotated[
        str | None, typer.Option(metavar="G", help="samples per step of all ranks together (the plan's)")
    ] = None,
    patience: Annotated[
        str, typer.Option(metavar="S", help="seconds after which two measured steps of a peer are enough")
    ] = "120",
    timeout: Annotated[str, typer.Option(metavar="S", help="seconds without a step that count as hanging")] = "300",
    as_json: Annotated[bool, typer.Option("--json", help="print everything as JSON instead of tables")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="show where an error comes from")] = False,
) -> Options:
    """Run a generated program, and its peers, on emulated hosts of this machine."""
    emitted = read_emitted(Path(out))
    cluster = emitted.plan["cluster"]
    n_hosts = positive_integer("--hosts", hosts) if hosts is not None else int(cluster["nodes"])
    if not 2 <= n_hosts <= MOST_HOSTS:
        raise UsageError("--hosts", f"{n_hosts} hosts", f"pass a number from 2 to {MOST_HOSTS}")
    return Options(
        emitted=emitted,
        hosts=n_hosts,
        bit_per_s=bandwidth("--bandwidth", bandwidth_) if bandwidth_ is not None else cluster["bandwidth_bit_per_s"],
        latency_s=latency("--latency", latency_) if latency_ is not None else None,
        host_cpus=_positive("--host-cpus", host_cpus) if host_cpus is not None else None,
        beside=_programs(beside, emitted) if beside is not None else (),
        against=_peers(against) if against is not None else (),
        rounds=positive_integer("--rounds", rounds),
        steps=positive_integer("--steps", steps),
        warm_up=positive_integer("--warm-up", warm_up),
        bounds=bounds,
        global_batch_size=positive_integer("--global-batch-size", global_batch_size) if global_batch_size else None,
        patience_s=_positive("--patience", patience),
        timeout_s=_positive("--timeout", timeout),
        as_json=as_json,
    )


def _programs(text: str, first: Emitted) -> tuple[Emitted, ...]:
    """Other programs for the model of the first, each under its folder's name."""
    found = tuple(read_emitted(Path(name.strip()), place="--beside") for name in text.split(","))
    taken = {PROGRAM, *PEERS}
    for each in found:
        name = each.folder.name
        if name in taken:
            raise UsageError("--beside", f"{name} is another contender's name as well", "rename the folder")
        if each.plan.get("model_hash") != first.plan.get("model_hash"):
            raise UsageError("--beside", f"{name} trains another model than {first.folder.name}", "compile one model")
        taken.add(name)
    return found


def _peers(text: str) -> tuple[str, ...]:
    if text == "all":
        return tuple(PEERS)
    return tuple(dict.fromkeys(one_of("--against", name.strip(), PEERS) for name in text.split(",")))


def _positive(place: str, text: str) -> float:
    if re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text, re.ASCII) and float(text) > 0:
        return float(text)
    raise UsageError(place, f"{text!r} is no number above zero", "write it like 2 or 0.4")
