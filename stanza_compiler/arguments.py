"""The command line, turned into Options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from stanza_compiler.cluster_file import MEASURE, read_cluster, read_text
from stanza_compiler.codecs import BOUNDARY_DTYPES, GRADIENT_CODECS, Codecs
from stanza_compiler.errors import UsageError
from stanza_compiler.options import Options
from stanza_compiler.plan import Request, read_request
from stanza_compiler.quantities import batch_axis, did_you_mean, input_spec, one_of, positive_integer

PASSES = ("load", "trace", "profile", "legality", "partition", "split", "emit", "certify")
CONFLICTS = (
    ("--batch-size", "--global-batch-size"),
    ("--plan", "--strategy"),
    ("--plan", "--placement"),
    ("--plan", "--conv-workers"),
    ("--plan", "--fc-workers"),
    ("--plan", "--cut-after"),
    ("--strategy data-parallel", "--placement"),
    ("--strategy data-parallel", "--fc-workers"),
    ("--strategy data-parallel", "--cut-after"),
    ("--json", "--dump"),
    ("--dry-run", "--onnx"),
    ("--dry-run", "--dump emit"),
    ("--dry-run", "--dump certify"),
    ("--no-verify", "--dump certify"),
)

# The parser's own complaints. Which package defines their class depends on typer's version.
ParserComplaint: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of the program: what to compile, and whether stdout gets plan.json instead of the report."""

    options: Options
    as_json: bool


def parse(argv: Sequence[str] | None = None) -> Invocation | None:
    """The checked command line, None when it only asked for help; sys.argv when `argv` is None.

    Raises UsageError.
    """
    try:
        invocation = typer.main.get_command(app).main(argv, prog_name="stanza-compile", standalone_mode=False)
    except ParserComplaint as complaint:
        raise _usage_error(complaint) from complaint
    return invocation if isinstance(invocation, Invocation) else None


def _usage_error(complaint: Any) -> UsageError:
    """The parser's complaint as PLACE: WHAT; REMEDY. `complaint` is of a class that typer doesn't name."""
    option = getattr(complaint, "option_name", None)
    if isinstance(complaint, typer.BadParameter):
        return UsageError("SOURCE", "missing", "pass the model's file, see stanza-compile --help")
    remedy = did_you_mean(option or "", getattr(complaint, "possibilities", None) or ())
    return UsageError(option or "command line", complaint.message.rstrip("."), f"{remedy}see stanza-compile --help")


@app.command()
def stanza_compile(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="model.py, model.py:attr, package.module:attr or model.onnx")
    ],
    out: Annotated[
        str | None, typer.Option("-o", "--out", metavar="OUT", help="folder to write (<stem>_stanza)")
    ] = None,
    nodes: Annotated[str | None, typer.Option(metavar="N", help="machines (4)")] = None,
    gpus_per_node: Annotated[str | None, typer.Option(metavar="G", help="devices in each (1)")] = None,
    bandwidth: Annotated[str | None, typer.Option(metavar="RATE", help="of a machine's link (10Gbit)")] = None,
    latency: Annotated[str | None, typer.Option(metavar="TIME", help="of a message (50us)")] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="v100, a100, h100, cpu, or measure on this machine (v100)")
    ] = None,
    cluster: Annotated[str | None, typer.Option(metavar="FILE", help="TOML or JSON with the five above")] = None,
    batch_size: Annotated[
        str | None, typer.Option(metavar="B", help="samples per CONV rank (the example's batch)")
    ] = None,
    global_batch_size: Annotated[str | None, typer.Option(metavar="G", help="samples per step, instead")] = None,
    strategy: Annotated[str, typer.Option(metavar="NAME", help="auto, separate or data-parallel")] = "auto",
    placement: Annotated[str, typer.Option(metavar="NAME", help="auto, dedicated, colocated or sharded")] = "auto",
    conv_workers: Annotated[str | None, typer.Option(metavar="N", help="ranks that train CONV")] = None,
    fc_workers: Annotated[str | None, typer.Option(metavar="N", help="ranks that host FC")] = None,
    cut_after: Annotated[str | None, typer.Option(metavar="OP", help="last op or module of CONV")] = None,
    plan: Annotated[str | None, typer.Option(metavar="FILE", help="take cut and allocation of a plan.json")] = None,
    trace: Annotated[str, typer.Option(metavar="NAME", help="front-end: auto, fx or export")] = "auto",
    leaves: Annotated[
        list[str] | None, typer.Option("--leaf", metavar="MODULE", help="keep this submodule whole")
    ] = None,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", metavar="SPEC", help="32x3x224x224:float32 or 4x12:int64[0,500)")
    ] = None,
    batch_axes: Annotated[
        list[str] | None, typer.Option("--batch-axis", metavar="NAME=K", help="an input's batch axis, or NAME=none")
    ] = None,
    batch_norm: Annotated[str, typer.Option(metavar="NAME", help="statistics: local (sync is to come)")] = "local",
    boundary_dtype: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="what crosses the cut travels as fp32, the default, bf16, fp16 or int8"),
    ] = None,
    gradient_codec: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="gradients are summed as they are (none, the default), or in bf16 or fp16"),
    ] = None,
    micro_batches: Annotated[
        str | None,
        typer.Option(metavar="M", help="cut each rank's part of a step into so many (1), or auto: pipelines conv-fc"),
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="write OUT/graph.onnx too, the plan as its metadata")] = False,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="don't compare with the model")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="plan and report, write nothing")] = False,
    dump: Annotated[
        str | None, typer.Option(metavar="PASS", help=f"print what one of {', '.join(PASSES)} made")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print plan.json instead of the report")] = False,
    force: Annotated[bool, typer.Option("--force", help="replace an OUT that stanza-compile wrote")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="show where an error comes from")] = False,
) -> Invocation:
    """Compile one PyTorch model into a layer-separated distributed training program."""
    _refuse_conflicts(
        {
            "--batch-size": batch_size,
            "--global-batch-size": global_batch_size,
            "--strategy": strategy != "auto",
            "--strategy data-parallel": strategy == "data-parallel",
            "--placement": placement != "auto",
            "--conv-workers": conv_workers,
            "--fc-workers": fc_workers,
            "--cut-after": cut_after,
            "--plan": plan,
            "--no-verify": no_verify,
            "--dry-run": dry_run,
            "--onnx": onnx,
            "--json": as_json,
            "--dump": dump,
            f"--dump {dump}": dump,
        }
    )
    if one_of("--batch-norm", batch_norm, ("local", "sync")) == "sync":
        raise UsageError("--batch-norm", "statistics over all ranks are not built yet", "use local")
    given = {"boundary_dtype": boundary_dtype, "gradient_codec": gradient_codec, "micro_batches": micro_batches}
    codecs = Codecs(
        one_of("--boundary-dtype", boundary_dtype or "fp32", BOUNDARY_DTYPES),
        one_of("--gradient-codec", gradient_codec or "none", GRADIENT_CODECS),
    )
    if codecs.gradient == "powersgd":
        what = "PowerSGD fails on gloo (received data size doesn't match expected size) and was never run on nccl"
        raise UsageError("--gradient-codec", what, "use bf16 or fp16")
    cluster_options = {
        "nodes": nodes,
        "gpus-per-node": gpus_per_node,
        "bandwidth": bandwidth,
        "latency": latency,
        "device": device,
    }
    machines = read_cluster(cluster_options, Path(cluster) if cluster is not None else None)
    request = Request(
        strategy=one_of("--strategy", strategy, ("auto", "separate", "data-parallel")),
        placement=one_of("--placement", placement, ("auto", "dedicated", "colocated", "sharded")),
        conv_workers=_optional_integer("--conv-workers", conv_workers),
        fc_workers=_optional_integer("--fc-workers", fc_workers),
        batch_size=_optional_integer("--batch-size", batch_size),
        global_batch_size=_optional_integer("--global-batch-size", global_batch_size),
        cut_after=cut_after,
        codecs=codecs,
        micro_batches=None if micro_batches == "auto" else positive_integer("--micro-batches", micro_batches or "1"),
    )
    if plan is not None:
        asked = [name for name, value in given.items() if value is not None]
        request = read_request(read_text("--plan", Path(plan)), f"--plan {plan}", request, asked)
    options = Options(
        source=source,
        out=Path(out) if out is not None else None,
        cluster=machines,
        request=request,
        inputs=tuple(input_spec("--input", text) for text in inputs or ()),
        batch_axes=tuple(batch_axis("--batch-axis", text) for text in batch_axes or ()),
        measure=machines.device.name == MEASURE,
        trace=cast(Literal["auto", "fx", "export"], one_of("--trace", trace, ("auto", "fx", "export"))),
        leaves=tuple(leaves or ()),
        verify=not no_verify,
        dry_run=dry_run,
        force=force,
        onnx=onnx,
        dump=one_of("--dump", dump, PASSES) if dump is not None else None,
    )
    return Invocation(options, as_json)


def _refuse_conflicts(given: Mapping[str, object]) -> None:
    for option, other in CONFLICTS:
        if given.get(option) and given.get(other):
            raise UsageError(option, f"can't be combined with {other}", "leave one of them out")


def _optional_integer(place: str, text: str | None) -> int | None:
    return positive_integer(place, text) if text is not None else None
