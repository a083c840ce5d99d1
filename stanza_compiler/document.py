"""A report as plain data: what every rendering starts from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text; `alignment` has an l or r per column."""

    header: tuple[str, ...]
    alignment: str
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """One heading with labelled facts, a table and sentences, in this order, any of them absent."""

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    table: Table | None = None
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    sections: tuple[Section, ...]
