"""A report as markdown."""

import re
from collections.abc import Iterable

from stanza_compiler.document import Document, Table


def render_markdown(document: Document) -> str:
    """The document in GitHub's markdown, a newline at the end."""
    lines = [f"# {_escaped(document.title)}"]
    for section in document.sections:
        lines += ["", f"## {_escaped(section.title)}"]
        if section.facts:
            lines += ["", *(f"- {_escaped(label)}: {_escaped(fact)}" for label, fact in section.facts)]
        if section.table:
            lines += ["", *_table_lines(section.table)]
        for sentence in section.sentences:
            lines += ["", _escaped(sentence)]
    return "\n".join(lines) + "\n"


def _table_lines(table: Table) -> Iterable[str]:
    yield _row(map(_escaped, table.header))
    yield _row("---:" if side == "r" else "---" for side in table.alignment)
    for row in table.rows:
        yield _row(map(_escaped, row))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Text that markdown shows as it is: names of ops may hold anything."""
    return re.sub(r"([\\`*|<>]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(text.split()))
