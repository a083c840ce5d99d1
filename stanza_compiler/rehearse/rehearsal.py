"""All contenders of one rehearsal, run one after the other on the same hosts."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stanza_compiler.rehearse.contenders import PROGRAM, Contender, complete, contenders
from stanza_compiler.rehearse.errors import RunError
from stanza_compiler.rehearse.messages import Failure, Measured, Run
from stanza_compiler.rehearse.options import Options
from stanza_compiler.rehearse.sandbox import Sandbox, sandbox
from stanza_compiler.rehearse.summary import Summary, summarise


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one contender: figures, or why there are none."""

    name: str
    summary: Summary | None
    failure: str


def rehearse(options: Options, *, show: Callable[[str], None]) -> tuple[Outcome, ...]:
    """Run every contender; `show` is told what goes on."""
    show("making hosts")
    with (
        tempfile.TemporaryDirectory(prefix="stanza-rehearse-") as folder,
        sandbox(options.hosts, options.host_cpus) as inside,
    ):
        return tuple(
            _outcome(contender, _run(contender, options, inside, Path(folder, contender.name), show))
            for contender in contenders(options, global_batch_size(options))
        )


def _outcome(contender: Contender, result: Measured | Failure) -> Outcome:
    """Raises RunError when it is the program itself that failed."""
    if isinstance(result, Measured):
        return Outcome(contender.name, summarise(result, processors=os.cpu_count() or 1), "")
    if contender.name == PROGRAM:
        remedy = "run it by torchrun to see it fail outside of a rehearsal"
        raise RunError(f"{contender.name}, {_where(result)}", _reason(result), remedy)
    return Outcome(contender.name, None, f"{_where(result)}: {_reason(result)}")


def _where(failure: Failure) -> str:
    return f"rank {failure.rank}" if failure.rank >= 0 else "all ranks"


def _reason(failure: Failure) -> str:
    """The rank's own `error:` line where it left one."""
    own = [line for line in failure.last_lines if line.startswith("error: ")] or list(failure.last_lines)
    return f"{failure.what}: {own[-1].removeprefix('error: ')}" if own else failure.what


def global_batch_size(options: Options) -> int:
    """Samples per step: what was asked for, else the plan's for every CONV rank of these hosts."""
    if options.global_batch_size is not None:
        return options.global_batch_size
    # Imported here: it loads torch.
    from stanza_compiler.runtime.arguments import Arguments, choose_layout
    from stanza_compiler.runtime.plan_file import read_plan

    plan = read_plan(options.emitted.folder / "plan.json")
    ranks = options.hosts * options.emitted.gpus_per_node
    layout = choose_layout(Arguments(), plan.layout, ranks, single_host=plan.single_host)
    return layout.conv_workers * plan.batch_size


def _run(
    contender: Contender, options: Options, inside: Sandbox, folder: Path, show: Callable[[str], None]
) -> Measured | Failure:
    folder.mkdir()
    metrics = folder / "metrics.jsonl"
    # The program tells of a step when the next one ends; the same moment of two steps is compared.
    all_steps = options.warm_up + options.steps + 1
    run = Run(
        command=complete(contender, steps=all_steps, metrics=metrics),
        folder=str(folder),
        metrics=str(metrics),
        ranks_per_host=options.emitted.gpus_per_node,
        bit_per_s=options.bit_per_s,
        warm_up=options.warm_up,
        steps=options.steps,
        patience_s=options.patience_s,
        timeout_s=options.timeout_s,
    )
    show(f"{contender.name}: starting")
    return inside.run(run, on_step=lambda step: show(f"{contender.name}: step {step} of {all_steps}"))
