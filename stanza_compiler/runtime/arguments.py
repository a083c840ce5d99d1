"""The command line of a generated program."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from .codecs import BOUNDARY_DTYPES, GRADIENT_CODECS, Codecs
from .errors import UsageError
from .layout import Layout
from .plan_file import Sharding


@dataclass(frozen=True, slots=True)
class Arguments:
    """The flags as given; None where the plan or a default decides. `timeout_s` bounds every wait, in seconds."""

    steps: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    global_batch_size: int | None = None
    conv_workers: int | None = None
    fc_workers: int | None = None
    placement: str | None = None
    seed: int = 0
    shuffle: bool = True
    export: Path | None = None
    metrics: Path | None = None
    single_process: bool = False
    backend: str | None = None
    timeout_s: float = 60.0
    boundary_dtype: str | None = None
    gradient_codec: str | None = None


def parse(argv: Sequence[str] | None) -> Arguments:
    """The arguments of this run; a flag that is unknown or malformed ends the process with status 2.

    Raises UsageError when a file to write has no folder.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=positive_integer, help="optimiser steps")
    length.add_argument(
        "--epochs", type=positive_integer, help="passes over the dataset (default: 1; synthetic: 10 steps)"
    )
    batch = parser.add_mutually_exclusive_group()
    batch.add_argument("--batch-size", type=positive_integer, help="samples per CONV rank (default: the plan's)")
    batch.add_argument("--global-batch-size", type=positive_integer, help="samples per step of all ranks together")
    parser.add_argument("--conv-workers", type=positive_integer, help="ranks that train the CONV stage")
    parser.add_argument("--fc-workers", type=positive_integer, help="ranks that host the FC stage")
    parser.add_argument("--placement", choices=("dedicated", "colocated", "sharded"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-shuffle", dest="shuffle", action="store_false", help="take items 0, 1, 2, ...")
    parser.add_argument("--export", type=Path, metavar="FILE", help="write the trained state_dict, original names")
    parser.add_argument("--metrics", type=Path, metavar="FILE", help="write one JSON line a step")
    parser.add_argument("--single-process", action="store_true", help="train the whole model, same global batches")
    parser.add_argument(
        "--backend", choices=("gloo", "nccl"), help="default: nccl with a GPU for every rank, else gloo"
    )
    parser.add_argument(
        "--timeout", dest="timeout_s", type=positive_seconds, default=60.0, help="seconds, for every wait"
    )
    parser.add_argument(
        "--boundary-dtype", choices=BOUNDARY_DTYPES, help="what crosses the cut travels so (default: the plan's)"
    )
    parser.add_argument(
        "--gradient-codec", choices=GRADIENT_CODECS, help="gradients are summed so (default: the plan's)"
    )
    arguments = Arguments(**vars(parser.parse_args(argv)))
    for flag, path in (("--export", arguments.export), ("--metrics", arguments.metrics)):
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(flag, f"no folder {path.parent}", "create it first")
        if path is not None and path.is_dir():
            raise UsageError(flag, f"{path} is a folder", "name a file in it")
    if arguments.backend == "nccl" and not torch.cuda.is_available():
        raise UsageError("--backend", "nccl needs an NVIDIA GPU, and there is none", "use gloo")
    if arguments.gradient_codec == "powersgd":
        what = "PowerSGD fails on gloo (received data size doesn't match expected size) and was never run on nccl"
        raise UsageError("--gradient-codec", what, "use bf16 or fp16")
    return arguments


def choose_codecs(arguments: Arguments, planned: Codecs) -> Codecs:
    """What the flags say, else the plan."""
    return Codecs(arguments.boundary_dtype or planned.boundary, arguments.gradient_codec or planned.gradient)


NOT_SHARDED = Sharding({}, "the plan says nothing of it")


def choose_layout(
    arguments: Arguments,
    planned: Layout,
    world_size: int,
    *,
    single_host: str = "",
    sharding: Sharding = NOT_SHARDED,
) -> Layout:
    """The layout of `world_size` ranks: what the flags say, else the plan's, scaled where the size differs.

    One process (`world_size` 1) only needs to know how many CONV ranks' batches make a step.
    `single_host` is why one FC host must see the whole batch, empty if it need not; sharded hosts all see it. Raises
    UsageError when the flags contradict that, each other, what can be sharded or the world size.
    """
    if arguments.single_process and world_size > 1:
        raise UsageError("--single-process", f"WORLD_SIZE is {world_size}", "start one process")
    if planned.placement == "data-parallel":
        return _data_parallel(arguments, world_size)
    placement = arguments.placement or planned.placement
    if placement == "sharded" and sharding.why_not:
        raise UsageError("--placement", f"the FC part can't be sharded: {sharding.why_not}", "pass colocated")
    if world_size == 1:
        conv_workers = arguments.conv_workers or planned.conv_workers
        return Layout(conv_workers, min(conv_workers, planned.fc_workers), placement)
    fc_share = max(1, round(planned.fc_workers * world_size / planned.world_size))
    if placement == "sharded":
        narrowest = min(sharding.columns.values())
        if planned.placement != "sharded":
            fc_share = world_size
        fc_share = min(fc_share, narrowest)
        if (arguments.fc_workers or 1) > narrowest:
            what = f"{arguments.fc_workers} hosts for a layer of {narrowest} columns"
            raise UsageError("--fc-workers", what, "pass fewer")
    elif single_host:
        fc_share = 1
    if placement in ("colocated", "sharded"):
        layout = Layout(
            arguments.conv_workers or world_size, arguments.fc_workers or min(fc_share, world_size), placement
        )
        if layout.fc_workers > layout.conv_workers:
            raise UsageError(
                "--fc-workers", f"{layout.fc_workers} hosts among {layout.conv_workers} CONV ranks", "pass fewer"
            )
    else:
        fc_workers = arguments.fc_workers
        if fc_workers is None and arguments.conv_workers is not None:
            fc_workers = world_size - arguments.conv_workers
        elif fc_workers is None:
            # A host without a CONV rank idles; only a plan or a flag that asks for one makes some.
            most = world_size // 2 if planned.fc_workers <= planned.conv_workers else world_size - 1
            fc_workers = min(fc_share, most)
        layout = Layout(arguments.conv_workers or world_size - fc_workers, fc_workers, placement)
    if layout.world_size != world_size or layout.conv_workers < 1 or layout.fc_workers < 1:
        raise UsageError(
            "worker flags", f"{layout} is no layout of WORLD_SIZE {world_size}", "pass counts that use every rank"
        )
    if single_host and layout.fc_workers > 1 and placement != "sharded":
        raise UsageError("--fc-workers", f"one FC host must see the whole batch: {single_host}", "pass --fc-workers 1")
    return layout


def _data_parallel(arguments: Arguments, world_size: int) -> Layout:
    for flag, value in (("--fc-workers", arguments.fc_workers), ("--placement", arguments.placement)):
        if value is not None:
            raise UsageError(flag, "this program trains the whole model data-parallel", "leave the flag out")
    workers = arguments.conv_workers or world_size
    if workers != world_size:
        raise UsageError("--conv-workers", f"{workers} workers, WORLD_SIZE is {world_size}", "leave the flag out")
    return Layout(workers, 0, "data-parallel")


def positive_integer(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def positive_seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no positive number of seconds")
    return value
