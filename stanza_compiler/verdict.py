"""Which plan wins, in words that a reader can check against the predictions."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import log

from stanza_compiler.cluster import Cluster
from stanza_compiler.opgraph import OpGraph
from stanza_compiler.plan import TERMS, Alternative, Prediction
from stanza_compiler.search import Candidate
from stanza_compiler.sweep import TIE

# A cut must save this share of data-parallel's time a sample.
LEAST_GAIN = 0.03

ALTERNATIVES = 5

COMPUTE_TERMS = ("conv_forward_s", "fc_forward_s", "fc_backward_s", "conv_backward_s")

# The bandwidths between which a break-even is looked for, in bit/s as powers of ten.
LOWEST_EXPONENT, HIGHEST_EXPONENT = 6, 14

PriceAt = Callable[[Cluster], Prediction]


def wins(separate: Prediction, data_parallel: Prediction) -> bool:
    """Whether separation takes at least 3% less time a sample than data-parallel."""
    return sample_s(separate) <= (1 - LEAST_GAIN) * sample_s(data_parallel)


def reason(strategy: str, separate: Prediction | None, data_parallel: Prediction, why_not: str) -> str:
    """One sentence: what was compared, and what the difference comes from; `why_not`: why nothing separate is."""
    if separate is None:
        return f"data-parallel, because {why_not}"
    ratio = sample_s(data_parallel) / sample_s(separate)
    compared = (
        f"{ratio:.2f} times data-parallel's samples per second "
        f"({separate.samples_per_s:,.1f} against {data_parallel.samples_per_s:,.1f})"
    )
    if ratio > 1:
        because = f"data-parallel takes {largest_loss(data_parallel, separate)}"
    else:
        because = f"separation takes {largest_loss(separate, data_parallel)}"
    if strategy == "separate":
        return f"separation was asked for and trains {compared}: {because}"
    if strategy == "data-parallel":
        return f"data-parallel was asked for; separation would train {compared}: {because}"
    if wins(separate, data_parallel):
        return f"separation trains {compared}: {because}"
    return f"separation would train {compared}, and a cut must save {LEAST_GAIN:.0%} of the time a sample: {because}"


def alternatives(
    graph: OpGraph, chosen: Prediction, data_parallel: Prediction, candidates: Iterable[Candidate]
) -> tuple[Alternative, ...]:
    """Up to five runner-up plans, fastest first; `chosen` is among those given and left out."""
    others = [
        _alternative(graph, chosen, each.prediction, each.fc_ops)
        for each in candidates
        if each.prediction is not chosen
    ]
    if data_parallel is not chosen:
        others.append(_alternative(graph, chosen, data_parallel, frozenset()))
    return tuple(sorted(others, key=lambda other: -other.samples_per_s)[:ALTERNATIVES])


def break_even_bit_per_s(separate_at: PriceAt, data_parallel_at: PriceAt, cluster: Cluster) -> float | None:
    """The bandwidth between nodes, in bit/s, where both take the same time a sample.

    Of several the one nearest the cluster's bandwidth (by ratio); None when one wins at every power of ten
    from 1 Mbit/s to 100 Tbit/s.
    """

    def separate_is_ahead(exponent: float) -> bool:
        at = replace(cluster, bandwidth_bit_per_s=10.0**exponent)
        return sample_s(separate_at(at)) < sample_s(data_parallel_at(at))

    ahead = {exponent: separate_is_ahead(exponent) for exponent in range(LOWEST_EXPONENT, HIGHEST_EXPONENT + 1)}
    crossings = [
        _bisected(separate_is_ahead, float(exponent))
        for exponent in range(LOWEST_EXPONENT, HIGHEST_EXPONENT)
        if ahead[exponent] != ahead[exponent + 1]
    ]
    found_bit_per_s = [10.0**exponent for exponent in crossings]
    return min(found_bit_per_s, key=lambda each: abs(log(each / cluster.bandwidth_bit_per_s)), default=None)


def sample_s(prediction: Prediction) -> float:
    return prediction.iteration_s / prediction.samples_per_step


def _bisected(holds: Callable[[float], bool], start: float) -> float:
    """Where within a decade above `start` the predicate changes, to a relative 1e-6 in bandwidth."""
    low, high = start, start + 1
    at_start = holds(low)
    for _ in range(22):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) == at_start else (low, middle)
    return (low + high) / 2


def _alternative(graph: OpGraph, chosen: Prediction, other: Prediction, fc_ops: frozenset[str]) -> Alternative:
    return Alternative(
        strategy="separate" if fc_ops else "data-parallel",
        allocation=other.allocation,
        fc_ops=len(fc_ops),
        first_fc_op=next((op.name for op in graph.ops if op.name in fc_ops), ""),
        iteration_s=other.iteration_s,
        samples_per_s=other.samples_per_s,
        why=_why_it_lost(chosen, other),
    )


def _why_it_lost(chosen: Prediction, other: Prediction) -> str:
    if sample_s(other) < sample_s(chosen) * (1 - TIE):
        return "faster, but not what was asked for, or by less than a cut must gain"
    return largest_loss(other, chosen)


def largest_loss(slower: Prediction, faster: Prediction) -> str:
    """The term that costs `slower` most, for as many samples as its step has.

    The compute terms are taken together: what separation takes from CONV's it adds to FC's.
    """
    share = slower.samples_per_step / faster.samples_per_step
    more_s = {term: slower.terms[term] - share * faster.terms[term] for term in TERMS}
    more_s["compute"] = sum(more_s.pop(term) for term in COMPUTE_TERMS)
    term = max(more_s, key=more_s.__getitem__)
    if more_s[term] <= TIE * slower.iteration_s:
        return "as long, with more moved"
    words = term.removesuffix("_s").replace("_", " ")
    return f"{more_s[term] * 1e3:.1f} ms longer in {words}, for {slower.samples_per_step:,.0f} samples"
