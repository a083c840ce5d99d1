"""Text that stays what it is between quotes."""

import ast
import doctest

import pytest

from stanza_compiler import text as module
from stanza_compiler.text import in_docstring, printable, quoted

HOSTILE = [
    '"', "'", "\\", '\\"', '" + spring() + "', "'); spring(); ('", "\n", "\r", "\0", "{}", "\u2028", "\ud800",
    '"""', '""""', 'x"', "x\\", "\\N", "\\x", '""" + spring() + """', "it's", "\u00fcn\u00efc\u00f6de \N{PARTY POPPER}",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_a_string_cannot_break_out_of_its_quotes(text: str) -> None:
    assert ast.literal_eval(quoted(text)) == text
    assert len(quoted(text).splitlines()) == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_a_docstring_stays_one_line_of_one_docstring(text: str) -> None:
    line = f'"""Take {in_docstring(text)}"""'
    assert len(line.splitlines()) == 1
    assert ast.literal_eval(line) == f"Take {text}"


def test_what_can_not_be_printed_is_a_question_mark() -> None:
    assert printable("a\nb\r\x1b[0m\udcff \u00e9t\u00e9") == "a?b??[0m? \u00e9t\u00e9"


def test_the_documented_examples_hold() -> None:
    assert doctest.testmod(module).failed == 0
