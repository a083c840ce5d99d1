"""The values of options, read from the text in which people write them.

Each function takes where the text stands (an option, a line of a file) and the text, and raises UsageError.
"""

import math
import re
from collections.abc import Iterable
from difflib import get_close_matches

from stanza_compiler.errors import UsageError
from stanza_compiler.opgraph import SHORT_DTYPES
from stanza_compiler.options import InputSpec

NUMBER = r"(\d+(?:\.\d+)?)\s*"
EXPONENTS = {"": 0, "k": 3, "m": 6, "g": 9, "t": 12, "p": 15}
SECOND_EXPONENTS = {"ns": -9, "us": -6, "ms": -3, "s": 0}
LARGEST = 1_000_000


def positive_integer(place: str, text: str) -> int:
    if re.fullmatch(r"\d{1,7}", text, re.ASCII) and 1 <= int(text) <= LARGEST:
        return int(text)
    raise UsageError(place, f"{text!r} is not a positive whole number", f"pass one from 1 to {LARGEST:,}")


def bandwidth(place: str, text: str) -> float:
    """Bit per second: `10Gbit`, `10 Gbit/s` and `10Gbps` are the same; bytes (`10GB/s`) are refused.

    >>> bandwidth("--bandwidth", "1.5Gbit")
    1500000000.0
    """
    return _rate(place, text, "(?:[bB]it(?:/s)?|bps)", "a bandwidth", "10Gbit or 200Mbit")


def flop_rate(place: str, text: str) -> float:
    """FLOP per second: `6.5TFLOP/s` and `6.5 TFLOPS` are the same.

    >>> flop_rate("flops", "6.5TFLOP/s")
    6500000000000.0
    """
    return _rate(place, text, "FLOP(?:/s|S|s)", "a speed of computing", "6.5TFLOP/s")


def memory_bandwidth(place: str, text: str) -> float:
    """Bytes per second: `250GB/s`.

    >>> memory_bandwidth("memory-bandwidth", "250GB/s")
    250000000000.0
    """
    return _rate(place, text, "B/s", "a memory's bandwidth", "250GB/s")


def _rate(place: str, text: str, unit: str, what: str, example: str) -> float:
    match = re.fullmatch(NUMBER + "([kKmMgGtTpP]?)" + unit, text.strip(), re.ASCII)
    rate = float(f"{match[1]}e{EXPONENTS[match[2].lower()]}") if match else 0.0
    if 0 < rate < math.inf:
        return rate
    raise UsageError(place, f"{text!r} is not {what} above zero", f"write it like {example}")


def latency(place: str, text: str) -> float:
    """Seconds.

    >>> latency("--latency", "50us")
    5e-05
    """
    match = re.fullmatch(NUMBER + f"({'|'.join(SECOND_EXPONENTS)})", text.strip().replace("µ", "u"), re.ASCII)
    seconds = float(f"{match[1]}e{SECOND_EXPONENTS[match[2]]}") if match else 0.0
    if 0 < seconds < math.inf:
        return seconds
    raise UsageError(place, f"{text!r} is not a time above zero", "write it like 50us or 0.2ms")


def one_of(place: str, text: str, choices: Iterable[str]) -> str:
    """The text itself when it is one of the choices."""
    names = list(choices)
    if text in names:
        return text
    raise UsageError(place, f"{text!r} is unknown", f"{did_you_mean(text, names)}pass one of {', '.join(names)}")


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """The beginning of a remedy: the close matches, or nothing."""
    close = get_close_matches(text, list(names), n=2)
    return f"did you mean {' or '.join(close)}? " if close else ""


def input_spec(place: str, text: str) -> InputSpec:
    """`32x3x224x224:float32`, or `4x12:int64[0,500)` for whole numbers from 0 to 499."""
    remedy = "write it like 32x3x224x224:float32 or 4x12:int64[0,500)"
    match = re.fullmatch(
        r"(\d{1,9}(?:x\d{1,9})*)(?::([a-z]+\d*)(?:\[(-?\d{1,18}),\s*(-?\d{1,18})\))?)?", text, re.ASCII
    )
    if match is None:
        raise UsageError(place, f"{text!r} does not describe a tensor", remedy)
    sizes, dtype, low, high = match.groups()
    spec = InputSpec(tuple(map(int, sizes.split("x"))), one_of(place, dtype or "float32", SHORT_DTYPES))
    if 0 in spec.shape:
        raise UsageError(place, f"{text!r} has a size of 0", remedy)
    if low is None:
        return spec
    if not spec.dtype.startswith(("int", "uint")):
        raise UsageError(place, f"{text!r} gives {spec.dtype} a range", "give ranges to whole numbers only")
    if int(low) >= int(high):
        raise UsageError(
            place, f"the range of {text!r} is empty", "put the smaller number first; the second is excluded"
        )
    return InputSpec(spec.shape, spec.dtype, int(low), int(high))


def batch_axis(place: str, text: str) -> tuple[str, int | None]:
    """`image=0`, or `mask=none` for an input without a batch axis."""
    name, _, axis = text.rpartition("=")
    if name and axis == "none":
        return name, None
    if name and re.fullmatch(r"\d{1,2}", axis, re.ASCII):
        return name, int(axis)
    raise UsageError(place, f"{text!r} names no batch axis", "write it like image=0 or mask=none")
