"""What a run reads from plan.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .codecs import PLAIN, Codecs
from .layout import Layout

# DistributedDataParallel's own size of a bucket.
MOST_BUCKET = 25 << 20


@dataclass(frozen=True, slots=True)
class Crossing:
    """How a boundary tensor is put together: batched along an axis, replicated, or per-rank."""

    kind: str
    batch_axis: int | None


@dataclass(frozen=True, slots=True)
class Sharding:
    """The FC part's Linears whose columns the hosts may share, in the order of the chain, each with its width.

    Where there are none `why_not` says why.
    """

    columns: Mapping[str, int]
    why_not: str


@dataclass(frozen=True, slots=True)
class PlanFile:
    """The plan's decisions that a run follows.

    `batch_size` is per CONV rank, a part that a step cuts into `micro_batches`; CONV's gradients are summed
    `bucket_bytes` at once; `single_host` says why one FC host must see the whole batch, if it must.
    """

    separate: bool
    batch_size: int
    layout: Layout
    single_host: str
    boundary: Mapping[str, Crossing]
    state_names: tuple[str, ...]
    sharding: Sharding
    codecs: Codecs = PLAIN
    micro_batches: int = 1
    bucket_bytes: int = MOST_BUCKET


def read_plan(path: Path) -> PlanFile:
    """The plan that the compiler wrote beside the program."""
    entry = json.loads(path.read_text(encoding="utf-8"))
    separate = entry["verdict"] == "separate"
    allocation = entry["allocation"]
    sharding = entry.get("sharding") or {"columns": {}, "why_not": "plan.json has no sharding of it"}
    return PlanFile(
        separate=separate,
        batch_size=entry["batch_size"],
        layout=Layout(allocation["conv_workers"], allocation["fc_workers"], allocation["placement"])
        if separate
        else Layout(allocation["conv_workers"], 0, "data-parallel"),
        single_host=entry["single_host"],
        boundary={item["name"]: Crossing(item["kind"], item["batch_axis"]) for item in entry["boundary"]},
        state_names=tuple(entry["state_dict"]),
        sharding=Sharding(sharding["columns"], sharding["why_not"]),
        codecs=Codecs(entry.get("boundary_dtype", "fp32"), entry.get("gradient_codec", "none")),
        micro_batches=entry.get("micro_batches", 1),
        bucket_bytes=entry.get("bucket_bytes", MOST_BUCKET),
    )
