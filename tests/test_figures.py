"""How numbers are written."""

import doctest

from stanza_compiler import figures
from stanza_compiler.figures import milliseconds, scaled, share


def test_the_documented_examples_hold() -> None:
    assert doctest.testmod(figures).failed == 0


def test_a_small_share_is_not_none() -> None:
    assert [share(part, 10_000) for part in (0, 1, 10, 5_000, 10_000)] == ["-", "<0.1%", "0.1%", "50.0%", "100.0%"]
    assert share(0, 0) == "-"


def test_units_grow_with_the_number() -> None:
    assert [scaled(count, "B") for count in (0, 999, 1_000, 30_940_528_640, 2.5e15)] == [
        "0 B",
        "999 B",
        "1 kB",
        "30.94 GB",
        "2500 TB",
    ]
    assert milliseconds(1.23456) == "1,234.56"
