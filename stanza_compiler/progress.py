"""Which pass is running, shown on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show `text` on stderr until the context ends, or what the yielded function replaces it with.

    Nothing is shown when stderr is no terminal.
    """
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    # Imported here: without a terminal nobody waits for rich.
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield status.update
