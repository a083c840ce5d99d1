"""How reports write numbers."""

PREFIXES = ("", "k", "M", "G", "T")


def share(part: float, whole: float) -> str:
    """A percentage; a part that rounds to nothing still shows."""
    if not part:
        return "-"
    return f"{100 * part / whole:.1f}%" if part >= whole / 1000 else "<0.1%"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"


def scaled(count: float, unit: str) -> str:
    """Four digits in the largest decimal unit that leaves a figure of 1 or more.

    >>> scaled(494_571_424, "B")
    '494.6 MB'
    """
    power = 0
    while count >= 1000 and power < len(PREFIXES) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.4g} {PREFIXES[power]}{unit}"
