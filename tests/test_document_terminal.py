"""Reports on terminals of several widths."""

import io

import pytest
from rich.console import Console

from stanza_compiler.document import Document, Section, Table
from stanza_compiler.document_terminal import print_document
from stanza_compiler.report import build_report
from tests.small_plan import GRAPH, PLAN


def _printed(document: Document, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_document(document, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(width: int) -> None:
    text = _printed(build_report(PLAN, GRAPH), width)
    assert max(len(line) for line in text.splitlines()) <= width
    for number in ("90.0%", "1,280.0", "57.6 kB", "450.00"):
        assert number in text


def test_text_is_no_markup() -> None:
    hostile = "[bold red]a[/] :smile:"
    table = Table((hostile,), "l", ((hostile,),))
    document = Document(hostile, (Section(hostile, ((hostile, hostile),), table, (hostile,)),))
    assert _printed(document, 80).count(hostile) == 7
