"""Values of options, right and wrong."""

import doctest

import pytest

from stanza_compiler import quantities
from stanza_compiler.errors import UsageError
from stanza_compiler.options import InputSpec
from stanza_compiler.quantities import bandwidth, batch_axis, input_spec, latency, one_of, positive_integer


def test_the_documented_examples_hold() -> None:
    assert doctest.testmod(quantities).failed == 0


@pytest.mark.parametrize(
    ("text", "bit_per_s"),
    [
        ("10Gbit", 10e9),
        ("10 Gbit/s", 10e9),
        ("10Gbps", 10e9),
        ("10gbit", 10e9),
        ("200Mbit", 200e6),
        ("2.5Tbit", 2.5e12),
        ("56kbit", 56e3),
        ("1bit", 1.0),
    ],
)
def test_bandwidths_are_bit_per_second(text: str, bit_per_s: float) -> None:
    assert bandwidth("--bandwidth", text) == bit_per_s


@pytest.mark.parametrize(
    "text", ["", "10", "10GB/s", "10GBps", "0Gbit", "-1Gbit", "nanGbit", "infGbit", "9" * 400 + "bit", "fast"]
)
def test_what_is_no_bandwidth_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--bandwidth: .* is not a bandwidth above zero; write it like 10Gbit"):
        bandwidth("--bandwidth", text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("50us", 50e-6), ("50µs", 50e-6), ("0.2ms", 2e-4), ("900 ns", 9e-7), ("1s", 1.0)]
)
def test_latencies_are_seconds(text: str, seconds: float) -> None:
    assert latency("--latency", text) == seconds


@pytest.mark.parametrize("text", ["", "50", "50u", "0us", "-1us", "1m", "1e400s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--latency: .* is not a time above zero; write it like 50us"):
        latency("--latency", text)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "four", "1000001", "9" * 5000, "٣"])
def test_only_whole_numbers_from_one_count_things(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--nodes: .* is not a positive whole number; pass one from 1 to 1,000,000$"):
        positive_integer("--nodes", text)


def test_inputs_have_sizes_a_type_and_a_range() -> None:
    assert input_spec("--input", "32x3x224x224:float32") == InputSpec((32, 3, 224, 224), "float32")
    assert input_spec("--input", "4x12:int64[0,500)") == InputSpec((4, 12), "int64", 0, 500)
    assert input_spec("--input", "7:int32[-5, 5)") == InputSpec((7,), "int32", -5, 5)
    assert input_spec("--input", "4x64x64x3:uint8[0,256)") == InputSpec((4, 64, 64, 3), "uint8", 0, 256)
    assert input_spec("--input", "2x3") == InputSpec((2, 3), "float32")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not describe a tensor"),
        ("4x", "does not describe a tensor"),
        ("4,3:float32", "does not describe a tensor"),
        ("4x3:int64[0,500]", "does not describe a tensor"),
        ("-4x3:float32", "does not describe a tensor"),
        ("0x3:float32", "has a size of 0"),
        ("4x3:float33", "did you mean float32"),
        ("4x3:float32[0,1)", "gives float32 a range"),
        ("4x3:int64[5,5)", "is empty"),
    ],
)
def test_what_is_no_input_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        input_spec("--input", text)


def test_a_batch_axis_is_a_number_or_none() -> None:
    assert batch_axis("--batch-axis", "image=1") == ("image", 1)
    assert batch_axis("--batch-axis", "mask=none") == ("mask", None)


@pytest.mark.parametrize("text", ["image", "=1", "image=", "image=-1", "image=first"])
def test_what_is_no_batch_axis_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="names no batch axis"):
        batch_axis("--batch-axis", text)


def test_an_unknown_name_gets_the_close_ones() -> None:
    with pytest.raises(UsageError, match=r"'h200' is unknown; did you mean h100\? pass one of v100, h100$"):
        one_of("--device", "h200", ["v100", "h100"])
