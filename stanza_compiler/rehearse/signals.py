"""What a signal to end does to a process that has something to clean up."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def unwinding() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind the stack as Ctrl-C does, by a KeyboardInterrupt with the signal's number."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
