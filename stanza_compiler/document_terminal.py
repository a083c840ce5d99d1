"""A report on a terminal."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from stanza_compiler.document import Document, Section, Table


def print_document(document: Document, console: Console) -> None:
    """Print the document as wide as the console is; nothing in it is taken for markup."""
    console.print(Text(document.title, style="bold"))
    for section in document.sections:
        console.print()
        console.print(Text(section.title, style="bold cyan"))
        _print_section(section, console)


def _print_section(section: Section, console: Console) -> None:
    if section.facts:
        grid = Grid.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for label, fact in section.facts:
            grid.add_row(Text(label), Text(fact))
        console.print(grid)
    if section.table:
        console.print(_grid(section.table))
    for sentence in section.sentences:
        console.print(Text(sentence))


def _grid(table: Table) -> Grid:
    """Numbers stay whole however narrow the terminal is; their titles take a line per word, names are folded."""
    grid = Grid(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    is_number = [side == "r" for side in table.alignment]
    titles = [
        title.replace(" ", "\n") if number else title for title, number in zip(table.header, is_number, strict=True)
    ]
    height = max(title.count("\n") for title in titles)
    for title, number in zip(titles, is_number, strict=True):
        bottom = Text("\n" * (height - title.count("\n")) + title)
        grid.add_column(bottom, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for row in table.rows:
        grid.add_row(*map(Text, row))
    return grid
