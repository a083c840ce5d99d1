"""The command, with a stub in place of the compiler."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from stanza_compiler.cli import main
from stanza_compiler.errors import LoadError, StanzaError, UsageError
from stanza_compiler.opgraph import OpGraph
from stanza_compiler.options import Options
from stanza_compiler.plan import Plan, to_json
from tests.small_plan import GRAPH, PLAN

OnPass = Callable[[str, object, float], None]
Captured = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class Compilation:
    plan: Plan = PLAN
    graph: OpGraph = GRAPH
    out: Path | None = Path("small_stanza")


Compile = Callable[[Options, OnPass], Compilation]
Stub = Callable[[Compile], None]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Install a function as the compiler; the real one would load torch."""

    def install(compile_: Compile) -> None:
        module = ModuleType("stanza_compiler.compiler")
        vars(module)["compile_source"] = lambda options, *, on_pass: compile_(options, on_pass)
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return install


def _chatty(options: Options, on_pass: OnPass) -> Compilation:
    print("the user's file prints this")
    on_pass("profile", "what profile made", 0.1)
    on_pass("partition", "what partition made", 0.1)
    return Compilation()


def _raising(error: BaseException) -> Compile:
    def compile_(options: Options, on_pass: OnPass) -> Compilation:
        raise error

    return compile_


def test_the_report_is_on_stdout_and_where_the_program_is_on_stderr(stub: Stub, capsys: Captured) -> None:
    stub(_chatty)
    assert main(["small.py"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("small.py: separate\n")
    assert "Certificate" in out
    assert err.splitlines() == [
        "the user's file prints this",
        "wrote small_stanza, train it with: torchrun --nproc-per-node 10 small_stanza/train.py",
    ]


def test_a_name_that_the_terminal_cannot_show_is_escaped(
    stub: Stub, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub(lambda options, on_pass: on_pass("profile", "\u00e9t\u00e9 \ud800", 0.1) or Compilation(out=None))
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    assert main(["small.py", "--dump", "profile"]) == 0
    assert raw.getvalue() == b"\\xe9t\\xe9 \\ud800\n"


def test_json_has_stdout_for_itself(stub: Stub, capsys: Captured) -> None:
    stub(_chatty)
    assert main(["small.py", "--json"]) == 0
    out, err = capsys.readouterr()
    assert out == to_json(PLAN)
    assert json.loads(out)["verdict"] == "separate"
    assert "note: small.py:8: kept on the conv side" in err.splitlines()


def test_dump_prints_what_one_pass_made(stub: Stub, capsys: Captured) -> None:
    stub(_chatty)
    assert main(["small.py", "--dump", "profile"]) == 0
    assert capsys.readouterr().out == "what profile made\n"


def test_a_dry_run_names_no_folder(stub: Stub, capsys: Captured) -> None:
    stub(lambda options, on_pass: Compilation(out=None))
    assert main(["small.py", "--dry-run"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (LoadError("small.py:3", "no\nmodel", "define one"), 1, "error: small.py:3: no model; define one"),
        (UsageError("OUT", "exists", "pass --force"), 2, "error: OUT: exists; pass --force"),
        (
            KeyError("x"),
            1,
            "error: stanza-compile: internal error, KeyError: 'x'; this is a bug of ours, please report it",
        ),
        (KeyboardInterrupt(), 130, "error: stanza-compile: interrupted; run it again"),
    ],
)
def test_a_failure_is_one_line(stub: Stub, capsys: Captured, error: BaseException, code: int, line: str) -> None:
    stub(_raising(error))
    assert main(["small.py"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(line)


def test_traceback_shows_where_an_error_comes_from(stub: Stub, capsys: Captured) -> None:
    stub(_raising(StanzaError("small.py", "wrong", "mend it")))
    assert main(["small.py", "--traceback"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line for line in lines if line.startswith("error:")] == [lines[-1]] == ["error: small.py: wrong; mend it"]


def test_a_usage_error_does_not_wait_for_torch() -> None:
    program = (
        "import sys, stanza_compiler.cli as cli; cli.main(['m.py', '--nodes', '0']); sys.exit('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stderr == "error: --nodes: '0' is not a positive whole number; pass one from 1 to 1,000,000\n"


def test_a_reader_that_stops_reading_gets_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "stanza_compiler", "--help"]
    run = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert run.stderr == ""


def test_an_error_that_follows_a_swallowed_interrupt_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def half_imported(*_: object, **__: object) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise AttributeError("module has no attribute")

    monkeypatch.setattr("stanza_compiler.compiler.compile_source", half_imported)
    assert main(["model.py"]) == 130
    assert capsys.readouterr().err == "error: stanza-compile: interrupted; run it again\n"
