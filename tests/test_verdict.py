"""Break-even and the words of the verdict, on curves chosen by hand."""

import pytest

from stanza_compiler.cluster import Cluster
from stanza_compiler.plan import TERMS, Allocation, Prediction
from stanza_compiler.verdict import break_even_bit_per_s, reason, wins


def _prediction(samples: int = 100, **terms: float) -> Prediction:
    return Prediction(Allocation(9, 1, "dedicated"), samples, 0, {**dict.fromkeys(TERMS, 0.0), **terms})


def test_a_cut_must_save_three_percent() -> None:
    assert wins(_prediction(conv_forward_s=0.97), _prediction(conv_forward_s=1.0))
    assert not wins(_prediction(conv_forward_s=0.98), _prediction(conv_forward_s=1.0))


def test_break_even_is_where_the_curves_meet() -> None:
    # 2 s + 1e9 bits against 1 s + 5e9 bits: equal at 4 Gbit/s.
    found = break_even_bit_per_s(
        lambda at: _prediction(conv_forward_s=2.0, up_s=1e9 / at.bandwidth_bit_per_s),
        lambda at: _prediction(conv_forward_s=1.0, up_s=5e9 / at.bandwidth_bit_per_s),
        Cluster(),
    )
    assert found == pytest.approx(4e9, rel=1e-5)


def test_there_is_no_break_even_when_one_always_wins() -> None:
    assert break_even_bit_per_s(lambda _: _prediction(up_s=1.0), lambda _: _prediction(up_s=2.0), Cluster()) is None


def test_of_two_break_evens_the_nearer_one_counts() -> None:
    # Ahead between 20 Mbit/s and 5 Tbit/s only.
    def separate(at: Cluster) -> Prediction:
        return _prediction(up_s=1.0 if 2e7 < at.bandwidth_bit_per_s < 5e12 else 3.0)

    for bandwidth_bit_per_s, nearest in ((1e8, 2e7), (1e12, 5e12)):
        cluster = Cluster(bandwidth_bit_per_s=bandwidth_bit_per_s)
        found = break_even_bit_per_s(separate, lambda _: _prediction(up_s=2.0), cluster)
        assert found == pytest.approx(nearest, rel=1e-5)


FAST = _prediction(conv_forward_s=0.5, up_s=0.1)
SLOW = _prediction(conv_forward_s=0.5, conv_allreduce_exposed_s=0.7)


@pytest.mark.parametrize(
    ("strategy", "separate", "whole", "sentence"),
    [
        (
            "auto",
            FAST,
            SLOW,
            "separation trains 2.00 times data-parallel's samples per second (166.7 against 83.3): "
            "data-parallel takes 700.0 ms longer in conv allreduce exposed, for 100 samples",
        ),
        (
            "separate",
            SLOW,
            FAST,
            "separation was asked for and trains 0.50 times data-parallel's samples per second "
            "(83.3 against 166.7): separation takes 700.0 ms longer in conv allreduce exposed, for 100 samples",
        ),
        (
            "auto",
            SLOW,
            FAST,
            "separation would train 0.50 times data-parallel's samples per second (83.3 against 166.7), "
            "and a cut must save 3% of the time a sample: "
            "separation takes 700.0 ms longer in conv allreduce exposed, for 100 samples",
        ),
        (
            "data-parallel",
            FAST,
            SLOW,
            "data-parallel was asked for; separation would train 2.00 times data-parallel's "
            "samples per second (166.7 against 83.3): "
            "data-parallel takes 700.0 ms longer in conv allreduce exposed, for 100 samples",
        ),
        ("auto", None, SLOW, "data-parallel, because only one op worth placing"),
    ],
)
def test_the_reason_is_one_sentence_with_figures(
    strategy: str, separate: Prediction | None, whole: Prediction, sentence: str
) -> None:
    assert reason(strategy, separate, whole, "only one op worth placing") == sentence
