"""The documentation of the command line and of plan.json against both."""

import json
from pathlib import Path
from typing import Any

import pytest

from stanza_compiler.arguments import parse
from stanza_compiler.plan import to_json
from tests.small_plan import PLAN

DOCS = Path(__file__).parent.parent / "docs"


def test_every_option_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    parse(["--help"])
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    options = {word for word in capsys.readouterr().out.split() if word.startswith("--")} - {"--help"}
    assert len(options) > 20
    assert [option for option in sorted(options) if f"`{option}" not in text] == []


def test_every_field_of_a_plan_is_documented() -> None:
    text = (DOCS / "plan-schema.md").read_text(encoding="utf-8")
    assert [name for name in sorted(_keys(json.loads(to_json(PLAN)))) if f"`{name}`" not in text] == []


def _keys(entry: Any) -> set[str]:
    if isinstance(entry, list):
        return set().union(*map(_keys, entry))
    if isinstance(entry, dict):
        return set(entry).union(*map(_keys, entry.values()))
    return set()
