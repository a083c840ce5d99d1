"""What a run reports as its own errors."""


class UsageError(Exception):
    """Flags that do not add up (exit status 2), in one line: `PLACE: WHAT; REMEDY`."""

    def __init__(self, place: str, what: str, remedy: str) -> None:
        super().__init__(f"{place}: {what}; {remedy}")


class DisagreementError(RuntimeError):
    """Two ranks would exchange tensors of different form."""


class EdgeError(RuntimeError):
    """A transfer between two ranks failed or timed out."""
