"""Which tensors cross into each segment."""

from collections.abc import Mapping
from dataclasses import dataclass

from .plan_file import Crossing, PlanFile
from .program import Program, Segment

ORDERS = (("conv", "fc"), ("fc", "conv"), ("fc", "conv", "fc"))


@dataclass(frozen=True, slots=True)
class Route:
    """Segment `number` of a program, and where what it takes comes from.

    `crossing` come from ranks of the other role, each tensor once a step; `kept` are there already.
    """

    number: int
    segment: Segment
    crossing: tuple[str, ...]
    kept: tuple[str, ...]
    is_last: bool

    @property
    def receives(self) -> bool:
        """Whether a message precedes this segment: to a first CONV segment nothing comes."""
        return self.segment.role == "fc" or self.number > 0


def find_routes(segments: tuple[Segment, ...]) -> tuple[Route, ...]:
    """The routes of a program's segments; CONV ranks have the model's inputs, hosts only what is sent to them."""
    order = tuple(segment.role for segment in segments)
    assert order in ORDERS, order
    assert all(segment.method == "forward" for segment in segments if segment.role == "conv"), segments
    given_by = {name: segment.role for segment in segments for name in segment.gives}
    at_host: set[str] = set()
    routes = []
    for number, segment in enumerate(segments):
        if segment.role == "fc":
            crossing = tuple(name for name in segment.takes if name not in at_host)
            at_host |= {*segment.takes, *segment.gives}
        else:
            crossing = tuple(name for name in segment.takes if given_by.get(name) == "fc")
        kept = tuple(name for name in segment.takes if name not in crossing)
        routes.append(Route(number, segment, crossing, kept, number == len(segments) - 1))
    return tuple(routes)


def find_kinds(program: Program, plan: PlanFile) -> Mapping[str, Crossing]:
    """How each tensor that a segment takes is put together.

    The plan need not list what only goes from one FC segment to the other: of such a tensor nothing is known, so both
    run once per rank. Raises ValueError where a tensor that crosses is not listed, and where a host must see the whole
    batch.
    """
    kinds = {
        name: Crossing("replicated" if example.batch_axis is None else "batched", example.batch_axis)
        for name, example in program.example_inputs.items()
    }
    kinds |= plan.boundary
    for route in find_routes(program.segments):
        for name in route.crossing:
            if name not in kinds:
                raise ValueError(f"plan.json: boundary lacks '{name}', which segment {route.number} takes")
        for name in route.kept if route.segment.role == "fc" else ():
            if name not in kinds and plan.single_host:
                raise ValueError(f"plan.json: boundary lacks '{name}', and one FC host must see the whole batch")
            kinds.setdefault(name, Crossing("per-rank", None))
    return kinds
