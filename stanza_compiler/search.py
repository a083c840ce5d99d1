"""The cheapest cut of one placement, over its allocations."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from stanza_compiler.cost_model import Costs, price_cut
from stanza_compiler.cuts import Cuts
from stanza_compiler.dominance import dominance
from stanza_compiler.front import ORDERS, FrontSpace, Order
from stanza_compiler.plan import Allocation, Prediction
from stanza_compiler.sharded_cost import ShardedPrices
from stanza_compiler.sweep import TIE, sweep
from stanza_compiler.tally import tally

# Allocations whose cuts are priced at once, which bounds memory.
AT_ONCE = 64

# Cuts priced at once on the way to the solver's first bound.
SEEDS = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """A priced plan; `boundary_bytes` cross for one sample on one rank, `fc_groups` is a bit mask.

    `front` are those of the FC ops that run before CONV.
    """

    prediction: Prediction
    costs: Costs
    fc_groups: int
    fc_ops: frozenset[str]
    boundary_bytes: float
    front: frozenset[str] = frozenset()
    ties: Cuts | None = None
    """The cuts among which the solver left ties to `settled`."""
    shared: ShardedPrices | None = None
    """What prices an FC part that the hosts share; `costs` are then those of one host."""

    @property
    def plan(self) -> tuple[Allocation, frozenset[str], frozenset[str]]:
        return self.prediction.allocation, self.fc_ops, self.front

    @property
    def sample_s(self) -> float:
        return self.prediction.iteration_s / self.prediction.samples_per_step


def search(choices: Sequence[Costs], cuts: Cuts, asked: int | None) -> tuple[Candidate, ...]:
    """Plans best first, the first one exact: within 1e-9 of the least time a sample over all cuts and choices.

    Ties go to fewer boundary bytes, fewer FC ops, later FC ops, then fewer hosts. `asked` fixes the FC groups.
    """
    rivals = [costs for costs in choices if not any(is_dominated(costs, other) for other in choices)]
    if asked is not None:
        return best_first([priced(costs, cuts, asked) for costs in rivals])
    found: list[Candidate] = []
    wide: dict[tuple[int, ...], list[Costs]] = {}
    for start in range(0, len(rivals), AT_ONCE):
        some = tuple(rivals[start : start + AT_ONCE])
        sums = tally(some, cuts)
        swept = sweep(sums, cuts, dominance(sums, cuts))
        for costs, plans in zip(some, swept.best, strict=True):
            found += [priced(costs, cuts, fc_groups) for fc_groups in plans]
        for window in swept.wide:
            wide.setdefault(window.groups, []).extend(some)
    for groups, costs_there in wide.items():
        found += _solved(costs_there, _within(cuts, groups), found)
    return best_first(found)


def _within(cuts: Cuts, groups: tuple[int, ...]) -> Cuts:
    """The cuts that lie in one window: what is before it is in CONV, what is behind it in FC."""
    others = cuts.everything & ~(cuts.conv_only | cuts.fc_only) & ~sum(1 << number for number in groups)
    before = others & ((1 << groups[0]) - 1)
    return replace(cuts, conv_only=cuts.conv_only | before, fc_only=cuts.fc_only | others & ~before)


def best(candidates: Iterable[Candidate]) -> Candidate:
    """The least time a sample, by the order of ties within 1e-9."""
    candidates = tuple(candidates)
    least_s = min(candidate.sample_s for candidate in candidates)
    return min((each for each in candidates if each.sample_s <= least_s * (1 + TIE)), key=_tie_order)


def settled(candidate: Candidate) -> Candidate:
    """The candidate, or the cut that ties with it under its allocation by fewer boundary bytes or FC ops."""
    if candidate.ties is None:
        return candidate
    from stanza_compiler.solver import fewest_bytes

    fewest = fewest_bytes(candidate.costs, candidate.ties, at_most_s=candidate.prediction.iteration_s)
    return candidate if fewest is None else best([candidate, priced(candidate.costs, candidate.ties, fewest)])


def _solved(choices: Sequence[Costs], cuts: Cuts, known: Sequence[Candidate]) -> list[Candidate]:
    """One program per allocation that might beat the best plan known so far, the most promising first."""
    # scipy.optimize costs half a second, which models whose cuts are all priced need not pay.
    from stanza_compiler.solver import cheapest_cut

    found: dict[tuple[int, int], Candidate] = {}

    def price(fc_groups: int) -> None:
        for place, costs in enumerate(choices):
            if (place, fc_groups) not in found:
                found[place, fc_groups] = replace(priced(costs, cuts, fc_groups), ties=cuts)

    # A bound for the solver: the least cut around each op with work, coarsely, then ever finer around the best.
    ladder = tuple(dict.fromkeys(cuts.smallest()))
    if not ladder:
        return []
    low, high, step = 0, len(ladder), len(ladder) + 1
    while step > 1:
        step = -(-(high - low) // SEEDS)
        rungs = range(low, high, step)
        for rung in rungs:
            price(ladder[rung])
        middle = min(rungs, key=lambda rung: min(found[place, ladder[rung]].sample_s for place in range(len(choices))))
        low, high = max(0, middle - step), min(len(ladder), middle + step + 1)
    open_places = set(range(len(choices)))
    while open_places:
        place = min(open_places, key=lambda each: min(c.sample_s for (at, _), c in found.items() if at == each))
        open_places.remove(place)
        costs = choices[place]
        at_most_s = best([*known, *found.values()]).sample_s * costs.samples
        if floor_s(costs) <= at_most_s:
            cheapest = cheapest_cut(costs, cuts, at_most_s=at_most_s)
            if cheapest is not None:
                price(cheapest)
    return list(found.values())


def floor_s(costs: Costs) -> float:
    """No cut is faster: every op on its cheaper side and nothing sent, or nothing computed while rings turn.

    A side's ring and what it overlaps take at least r seconds for an op's gradient. A colocated link carries
    both rings; dedicated roles carry theirs at the same time, each best with its share of an op that ends both at once.
    """
    compute_s = sum(
        min(op.conv_forward_s + op.conv_backward_s, op.fc_forward_s + op.fc_backward_s - op.fc_late_s)
        for op in costs.ops
    )
    forward_s = sum(min(op.conv_forward_s, op.fc_forward_s) for op in costs.ops)
    rings = [
        (op.conv_ring_bytes * costs.conv_ring.s_per_byte, op.fc_ring_bytes * costs.fc_ring.s_per_byte)
        for op in costs.ops
        if op.trains
    ]
    if costs.allocation.placement == "dedicated":
        ring_s = _least_longer(rings)
    else:
        ring_s = sum(min(conv, fc) for conv, fc in rings)
    return max(compute_s, forward_s + ring_s)


def _least_longer(rings: Sequence[tuple[float, float]]) -> float:
    """The least that the longer of two sums can be: each pair adds to the first or the second, or to both by halves.

    >>> _least_longer([(1.0, 9.0), (4.0, 4.0)])
    2.5
    """
    first_s, second_s = 0.0, sum(second for _, second in rings)
    for first, second in sorted(rings, key=lambda pair: pair[0] / (sum(pair) or 1.0)):
        if first_s + first >= second_s - second:
            share = (second_s - first_s) / (first + second or 1.0)
            return first_s + share * first
        first_s, second_s = first_s + first, second_s - second
    return max(first_s, second_s)


def is_dominated(costs: Costs, other: Costs) -> bool:
    """Whether `other` costs no more for every cut, with fewer hosts for as many CONV workers.

    Ten colocated ranks with six hosts have two ranks on the busiest host as with five, and a longer FC ring.
    """
    return (
        other.allocation.fc_workers < costs.allocation.fc_workers
        and other.parts == costs.parts
        and other.fc_ring.s_per_byte <= costs.fc_ring.s_per_byte
        and other.fc_ring.latency_s <= costs.fc_ring.latency_s
        and all(
            one.fc_forward_s <= two.fc_forward_s
            and one.fc_backward_s <= two.fc_backward_s
            and one.fc_ring_bytes <= two.fc_ring_bytes
            and one.fc_updated_bytes <= two.fc_updated_bytes
            for one, two in zip(other.ops, costs.ops, strict=True)
        )
        and all(any(busier.carries(link) for busier in costs.links) for link in other.links)
    )


def priced(costs: Costs, cuts: Cuts, fc_groups: int, front_groups: int = 0) -> Candidate:
    """The priced plan with `fc_groups` of `cuts` in FC, those of `front_groups` among them before CONV."""
    fc_ops, front = cuts.ops(fc_groups), cuts.ops(front_groups)
    back = fc_ops - front
    boundary_bytes = sum(
        tensor.value.bytes_at(1)
        for tensor in costs.tensors
        if tensor.goes_to_front(front) or tensor.comes_down(front, back) or tensor.goes_up(front, back)
    )
    return Candidate(price_cut(costs, fc_ops, front), costs, fc_groups, fc_ops, boundary_bytes, front)


def search_front(
    choices: Sequence[Costs], space: FrontSpace, known: Sequence[Candidate], orders: Sequence[Order] = ORDERS
) -> tuple[Candidate, ...]:
    """The best plan of each allocation with FC ops in front, where it beats all of `known` and those before it."""
    orders = [order for order in orders if not space.why_not(order)]
    if not orders:
        return ()
    from stanza_compiler.front_solver import cheapest_front

    found: list[Candidate] = []
    for costs in choices:
        if any(is_dominated(costs, other) for other in choices):
            continue
        for order in orders:
            best_known = best([*known, *found]) if known or found else None
            at_most_s = best_known.sample_s * costs.samples if best_known else _ceiling_s(costs)
            # Once more within what was found, because the solver's tolerance is a share of its bound.
            while floor_s(costs) <= at_most_s:
                plan = cheapest_front(costs, space, order, at_most_s=at_most_s)
                if plan is None:
                    break
                front, back = plan
                found.append(priced(costs, space.cuts, front | back, front))
                before_s, at_most_s = at_most_s, found[-1].prediction.iteration_s
                if at_most_s > 0.5 * before_s:
                    break
    return best_first(found)


def _ceiling_s(costs: Costs) -> float:
    """No plan is slower: every op on both sides, every tensor sent five times, both rings over all gradients."""
    compute_s = sum(op.conv_forward_s + op.conv_backward_s + op.fc_forward_s + op.fc_backward_s for op in costs.ops)
    ring_s = costs.conv_ring.latency_s + costs.fc_ring.latency_s
    ring_s += sum(
        op.conv_ring_bytes * costs.conv_ring.s_per_byte + op.fc_ring_bytes * costs.fc_ring.s_per_byte
        for op in costs.ops
    )
    payload_s = sum(
        sum(costs.up_s(link, tensor, to_all=True) + costs.up_s(link, tensor) for tensor in costs.tensors)
        + link.samples * costs.target_bytes * link.s_per_byte
        for link in costs.links
    )
    optimizer_s = sum(op.conv_updated_bytes + op.fc_updated_bytes for op in costs.ops) * costs.optimizer_s_per_byte
    return 1e-9 + compute_s + ring_s + 5 * (costs.latency_s + payload_s) + optimizer_s


def best_first(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    if not candidates:
        return ()
    winner = best(candidates)
    others = sorted(
        (each for each in candidates if each is not winner), key=lambda each: (each.sample_s, _tie_order(each))
    )
    return (winner, *others)


def _tie_order(candidate: Candidate) -> tuple[float, int, int, int]:
    hosts = candidate.prediction.allocation.fc_workers
    return candidate.boundary_bytes, len(candidate.fc_ops), -candidate.fc_groups, hosts
