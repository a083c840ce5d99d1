"""All contenders of one rehearsal, run one after the other on the same hosts."""

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stanza_compiler.cluster import Cluster
from stanza_compiler.cost_model import Batch
from stanza_compiler.errors import UsageError
from stanza_compiler.plan import Allocation
from stanza_compiler.rehearse.contenders import PROGRAM, contenders
from stanza_compiler.rehearse.options import Options
from stanza_compiler.rehearse.predict import Prediction, predict
from stanza_compiler.rehearse.runs import Kind, Runs
from stanza_compiler.rehearse.sandbox import sandbox
from stanza_compiler.rehearse.summary import Summary

PREDICTED = (PROGRAM, "ddp")
DATA_PARALLEL: dict[str, Any] = {"boundary": [], "stages": []}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one contender: figures on the links and without their limit, or why there are none."""

    name: str
    summary: Summary | None
    unshaped: Summary | None
    prediction: Prediction | None
    failure: str
    no_prediction: str


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """`samples` in each step, the program's `allocation`, its outcome and then those of its peers."""

    samples: int
    allocation: Allocation
    outcomes: tuple[Outcome, ...]


def rehearse(options: Options, *, show: Callable[[str], None]) -> Rehearsed:
    """Run every contender in every round, in an order drawn anew each time; `show` is told what goes on.

    Raises SandboxError, and RunError when the program itself fails.
    """
    show("making hosts")
    allocation = choose_allocation(options)
    samples = options.global_batch_size or allocation.conv_workers * int(options.emitted.plan["batch_size"])
    everyone = contenders(options, samples)
    with (
        tempfile.TemporaryDirectory(prefix="stanza-rehearse-") as folder,
        sandbox(options.hosts, options.host_cpus) as inside,
    ):
        runs = Runs(options, inside, Path(folder), show)
        for number in range(options.rounds):
            turns = [(each, Kind.SHAPED) for each in everyone]
            if not number:
                turns += [(each, Kind.ALONE) for each in everyone if each.name in PREDICTED]
                turns += [(each, Kind.UNSHAPED) for each in everyone if options.bounds]
            random.Random(number).shuffle(turns)
            for contender, kind in turns:
                runs.run(contender, kind)
        outcomes = tuple(_outcome(each.name, runs, options, allocation, samples) for each in everyone)
    return Rehearsed(samples, allocation, outcomes)


def choose_allocation(options: Options) -> Allocation:
    """The allocation of the plan, scaled to these hosts as the program does it; raises UsageError."""
    # Imported here: they load torch.
    from stanza_compiler.runtime.arguments import Arguments, choose_layout
    from stanza_compiler.runtime.errors import UsageError as RuntimeUsageError
    from stanza_compiler.runtime.plan_file import read_plan

    plan = read_plan(options.emitted.folder / "plan.json")
    try:
        layout = choose_layout(
            Arguments(), plan.layout, options.ranks, single_host=plan.single_host, sharding=plan.sharding
        )
    except RuntimeUsageError as error:
        raise UsageError("--hosts", str(error), "pass another number of hosts") from error
    return Allocation(layout.conv_workers, layout.fc_workers, layout.placement)


def _outcome(name: str, runs: Runs, options: Options, allocation: Allocation, samples: int) -> Outcome:
    alone, prediction, why_not = runs.summary(name, Kind.ALONE), None, runs.failure(name, Kind.ALONE)
    if alone is not None:
        own = allocation if name == PROGRAM else Allocation(options.ranks, 0, "data-parallel")
        cluster = Cluster(options.hosts, options.emitted.gpus_per_node, options.bit_per_s, options.latency_s or 0.0)
        try:
            events = runs.events(name, options.ranks)
        except ValueError as error:
            why_not = str(error)
        else:
            prediction = predict(
                options.emitted.plan if name == PROGRAM else DATA_PARALLEL,
                own,
                cluster,
                Batch(samples, is_global=True).parts(own.conv_workers),
                alone=alone,
                events=events,
            )
    return Outcome(
        name,
        runs.summary(name, Kind.SHAPED),
        runs.summary(name, Kind.UNSHAPED),
        prediction,
        runs.failure(name, Kind.SHAPED),
        why_not,
    )
