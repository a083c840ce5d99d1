"""Ctrl-C that no library can swallow."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self


class Interrupt:
    """While entered, SIGINT raises KeyboardInterrupt as always and is remembered too.

    Libraries that import others lazily catch it and go on with half of a module; `check` raises it again.
    """

    def __init__(self) -> None:
        self.seen = False
        self._waits = False
        self._before: object = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # nobody else may set a handler
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if callable(self._before) or isinstance(self._before, int):
            signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Remember it meanwhile, raise it at the end: an exception that crosses an import of C++ code aborts."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False
        self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt if one was seen."""
        if self.seen:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        if not self._waits:
            raise KeyboardInterrupt
