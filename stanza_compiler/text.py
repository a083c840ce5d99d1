"""Text that nothing in it can break out of, and dotted names."""

from collections.abc import Iterator


def quoted(text: str) -> str:
    """A string literal, in double quotes where that needs no escape."""
    return f'"{text}"' if text.isprintable() and not set(text) & set('"\\') else repr(text)


def in_docstring(text: str) -> str:
    """What reads as `text` between three double quotes: it ends neither the docstring nor a line of it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in escaped
    )


def printable(text: str) -> str:
    """Text for one line, with a question mark for what can't be printed."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def paths_to(name: str) -> Iterator[str]:
    """The root, the modules on the way to a name, and the name itself.

    >>> list(paths_to("a.b.c"))
    ['', 'a', 'a.b', 'a.b.c']
    """
    yield ""
    for place, letter in enumerate(name):
        if letter == ".":
            yield name[:place]
    yield name
