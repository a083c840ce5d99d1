"""The decision as data: which op in which segment, who hosts what, what that is predicted to cost."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
from itertools import zip_longest
from typing import Any, Literal

from stanza_compiler.codecs import PLAIN, Codecs
from stanza_compiler.errors import UsageError
from stanza_compiler.opgraph import SHORT_DTYPES, Kind

SCHEMA_VERSION = 1

# DistributedDataParallel's own size of a bucket.
MOST_BUCKET = 25 << 20

STRATEGIES = ("data_parallel", "parameter_server_1", "parameter_server_n", "dedicated", "colocated", "sharded")
TERMS = (
    "conv_forward_s",
    "up_s",
    "fc_forward_s",
    "fc_backward_s",
    "down_s",
    "conv_backward_s",
    "conv_allreduce_exposed_s",
    "fc_exposed_s",
    "optimizer_s",
)

Role = Literal["conv", "fc", "model"]


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked of the planner; None leaves the choice to it."""

    strategy: str = "auto"
    placement: str = "auto"
    conv_workers: int | None = None
    fc_workers: int | None = None
    batch_size: int | None = None
    global_batch_size: int | None = None
    cut_after: str | None = None
    fc_ops: tuple[str, ...] | None = None
    codecs: Codecs = PLAIN
    micro_batches: int | None = 1


@dataclass(frozen=True, slots=True)
class Allocation:
    """`conv_workers` ranks train CONV (or the whole model), `fc_workers` ranks host FC."""

    conv_workers: int
    fc_workers: int
    placement: str

    @property
    def world_size(self) -> int:
        return self.conv_workers + (self.fc_workers if self.placement in ("dedicated", "parameter-server-1") else 0)

    def __str__(self) -> str:
        if self.placement == "dedicated":
            return f"{self.conv_workers} conv + {self.fc_workers} fc, dedicated"
        if self.placement == "colocated":
            return f"{self.conv_workers} conv, {self.fc_workers} of them also fc, colocated"
        if self.placement == "sharded":
            return f"{self.conv_workers} conv, fc sharded over {self.fc_workers} of them"
        return f"{self.conv_workers} ranks, {self.placement}"


@dataclass(frozen=True, slots=True)
class Prediction:
    """One strategy's best plan: seconds per step by term, bytes sent per step by all nodes together."""

    allocation: Allocation
    samples_per_step: float
    bytes_per_step: float
    terms: dict[str, float]

    @property
    def iteration_s(self) -> float:
        return sum(self.terms.values())

    @property
    def samples_per_s(self) -> float:
        """0 for a model of views alone, which takes no time."""
        return self.samples_per_step / self.iteration_s if self.iteration_s else 0.0

    @property
    def bytes_per_sample(self) -> float:
        return self.bytes_per_step / self.samples_per_step


@dataclass(frozen=True, slots=True)
class Stage:
    """What one role trains: its segments, each a run of ops, with totals over them."""

    role: Role
    segments: tuple[tuple[str, ...], ...]
    ops: int
    parameters: int
    parameter_bytes: int
    forward_flops: int

    def __str__(self) -> str:
        names = [name for segment in self.segments for name in segment]
        return f"{self.role:5} {', '.join(names)}  {self.parameter_bytes / 1e6:.1f} MB"


@dataclass(frozen=True, slots=True)
class Boundary:
    """A tensor that crosses from one segment to a later one; sizes are those of the profiled batch."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: Kind
    batch_axis: int | None
    bytes_per_sample: int
    requires_grad: bool
    from_segment: int
    to_segment: int
    codec_error: float | None = None
    """What --boundary-dtype loses of it on the example: |arrived - sent| / |sent|; null where nothing is coded."""
    gradient_codec_error: float | None = None
    """The same of its gradient on the way back."""

    def __str__(self) -> str:
        sizes = ["B" if axis == self.batch_axis else str(size) for axis, size in enumerate(self.shape)]
        return (
            f"{self.name} {SHORT_DTYPES.get(self.dtype, self.dtype)}[{', '.join(sizes)}]  {self.kind}, "
            f"{self.bytes_per_sample:,} B a sample, segment {self.from_segment} to {self.to_segment}"
        )


@dataclass(frozen=True, slots=True)
class Sharding:
    """The FC part's Linear layers whose columns hosts may share, in their order, each with its width.

    Where hosts can't share it `columns` is empty and `why_not` says why.
    """

    columns: dict[str, int]
    why_not: str


@dataclass(frozen=True, slots=True)
class Totals:
    parameter_bytes: int
    forward_flops: int
    constant_flops: int
    ops: int


@dataclass(frozen=True, slots=True)
class Alternative:
    """A plan that lost, and why."""

    strategy: str
    allocation: Allocation
    fc_ops: int
    first_fc_op: str
    iteration_s: float
    samples_per_s: float
    why: str


@dataclass(frozen=True, slots=True)
class HeavyParameter:
    """What training one parameter data-parallel would cost a step; `role` is who trains it in this plan.

    `rows` are those that a rank's batch looks up where the gradient is sparse, null where it is dense;
    `data_parallel_bytes` are sent by all nodes, and `data_parallel_s` a link is busy with them, hidden or not.
    """

    name: str
    role: str
    bytes: int
    rows: float | None
    data_parallel_bytes: float
    data_parallel_s: float


@dataclass(frozen=True, slots=True)
class OrderPrice:
    """The best plan of one order of segments, seconds and allocation null where there is none, and why so."""

    order: str
    allocation: Allocation | None
    iteration_s: float | None
    samples_per_s: float | None
    why: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was compared between the emitted files and the model, with the largest differences seen.

    `refused` names what could not be compared because the model itself refuses it, and how.
    """

    passed: bool
    forward_max_abs_diff: float
    gradient_max_abs_diff: float
    buffers_equal: bool
    names_equal: bool
    modes: tuple[str, ...]
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that plan.json says; docs/plan-schema.md explains each field."""

    source: str
    model_hash: str
    front_end: str
    requires: tuple[str, ...]
    batch_size: int
    cluster: dict[str, Any]
    verdict: Literal["separate", "data-parallel"]
    reason: str
    totals: Totals
    stages: tuple[Stage, ...]
    boundary: tuple[Boundary, ...]
    allocation: Allocation
    predictions: dict[str, Prediction | None]
    break_even_bit_per_s: float | None
    alternatives: tuple[Alternative, ...] = ()
    orders: tuple[OrderPrice, ...] = ()
    heavy_parameters: tuple[HeavyParameter, ...] = ()
    notes: tuple[str, ...] = ()
    certificate: Certificate | None = None
    codecs: Codecs = PLAIN
    """What travels narrower than it is computed."""
    micro_batches: int = 1
    """Into how many pieces each rank cuts its part of a step, so that they pass CONV and FC as through a pipeline."""
    single_host: str = ""
    """Why one FC host must see the whole batch; empty when several may share it."""
    state_dict: tuple[str, ...] = ()
    """The model's state_dict keys in their own order."""
    sharding: Sharding = Sharding({}, "the whole model is trained data-parallel")
    bucket_bytes: int = MOST_BUCKET
    """In what pieces CONV's gradients, or the whole model's, are summed."""

    @property
    def sequence(self) -> tuple[tuple[Role, tuple[str, ...]], ...]:
        """(role, op names) of every segment in the order in which a step runs them: the roles take turns."""
        first, *others = self.stages
        turns = zip_longest(first.segments, *(stage.segments for stage in others))
        roles = [stage.role for stage in self.stages]
        return tuple(
            (role, names) for turn in turns for role, names in zip(roles, turn, strict=True) if names is not None
        )

    def stage(self, role: Role) -> Stage:
        return next(stage for stage in self.stages if stage.role == role)

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {self.reason}", str(self.allocation)]
        return "\n".join([*lines, *map(str, self.stages), *map(str, self.boundary)])


def to_json(plan: Plan) -> str:
    """plan.json: stable key order, two-space indent, a newline at the end."""
    predictions = {name: _prediction_entry(plan.predictions.get(name)) for name in STRATEGIES}
    entry: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    for field in fields(plan):
        match field.name:
            case "allocation":
                entry["allocation"] = _allocation_entry(plan.allocation)
            case "predictions":
                entry["predictions"] = predictions
            case "break_even_bit_per_s":
                entry["break_even"] = {"bandwidth_bit_per_s": plan.break_even_bit_per_s}
            case "alternatives":
                entry["alternatives"] = [
                    {**asdict(other), "allocation": _allocation_entry(other.allocation)} for other in plan.alternatives
                ]
            case "orders":
                entry["orders"] = [
                    {**asdict(price), "allocation": price.allocation and _allocation_entry(price.allocation)}
                    for price in plan.orders
                ]
            case "totals" | "sharding":
                entry[field.name] = asdict(getattr(plan, field.name))
            case "stages" | "boundary" | "heavy_parameters":
                entry[field.name] = [asdict(item) for item in getattr(plan, field.name)]
            case "codecs":
                entry["boundary_dtype"], entry["gradient_codec"] = plan.codecs.boundary, plan.codecs.gradient
            case "certificate":
                entry["certificate"] = asdict(plan.certificate) if plan.certificate else None
            case _:
                entry[field.name] = getattr(plan, field.name)
    return json.dumps(entry, indent=2, allow_nan=False) + "\n"


def _allocation_entry(allocation: Allocation) -> dict[str, Any]:
    return {**asdict(allocation), "world_size": allocation.world_size}


def _prediction_entry(prediction: Prediction | None) -> dict[str, Any] | None:
    if prediction is None:
        return None
    return {
        "iteration_s": prediction.iteration_s,
        "samples_per_step": prediction.samples_per_step,
        "samples_per_s": prediction.samples_per_s,
        "bytes_per_step": prediction.bytes_per_step,
        "bytes_per_sample": prediction.bytes_per_sample,
        "allocation": _allocation_entry(prediction.allocation),
        "terms": prediction.terms,
    }


def read_request(text: str, place: str, request: Request, given: Collection[str] = ()) -> Request:
    """The request with the cut, the allocation and the codecs of an edited plan.json in it.

    Of `boundary_dtype`, `gradient_codec` and `micro_batches` those that are `given` stay as the request has them.
    Raises UsageError when `text` is no plan of this schema.
    """
    remedy = "pass a plan.json that stanza-compile wrote"
    try:
        entry = json.loads(text)
        if entry["schema_version"] != SCHEMA_VERSION:
            raise UsageError(
                place, f"plan schema {entry['schema_version']}, this version reads {SCHEMA_VERSION}", remedy
            )
        allocation = entry["allocation"]
        fc_ops = [
            name
            for stage in entry["stages"]
            if stage["role"] == "fc"
            for segment in stage["segments"]
            for name in segment
        ]
        separate = entry["verdict"] == "separate"
        return Request(
            strategy="separate" if separate else "data-parallel",
            placement=str(allocation["placement"]) if separate else "auto",
            conv_workers=int(allocation["conv_workers"]),
            fc_workers=int(allocation["fc_workers"]) if separate else None,
            batch_size=request.batch_size or (None if request.global_batch_size else int(entry["batch_size"])),
            global_batch_size=request.global_batch_size,
            fc_ops=tuple(map(str, fc_ops)) if separate else None,
            codecs=Codecs(
                request.codecs.boundary if "boundary_dtype" in given else str(entry["boundary_dtype"]),
                request.codecs.gradient if "gradient_codec" in given else str(entry["gradient_codec"]),
            ),
            micro_batches=request.micro_batches
            if "micro_batches" in given or not separate
            else int(entry.get("micro_batches", 1)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(place, f"not a plan ({type(error).__name__}: {error})", remedy) from error
