"""Who may import whom."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "stanza_compiler"
THIRD_PARTY = {"torch", "networkx", "scipy", "numpy", "jinja2", "typer", "click", "rich", "onnx", "onnx_ir"}


def _imports(path: Path) -> Iterator[str]:
    """Absolute names that a file imports; relative ones keep their leading dots."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def _top(name: str) -> str:
    return name.partition(".")[0]


SOURCES = sorted([*PACKAGE.glob("*.py"), *PACKAGE.glob("onnx_import/**/*.py"), *(ROOT / "passes").glob("*.py")])
RUNTIME = sorted((PACKAGE / "runtime").glob("*.py"))


@pytest.mark.parametrize("path", RUNTIME, ids=lambda path: path.name)
def test_the_runtime_imports_torch_the_standard_library_and_itself_alone(path: Path) -> None:
    outside = {name for name in _imports(path) if not name.startswith(".")}
    assert {_top(name) for name in outside} <= {"torch", *sys.stdlib_module_names}


@pytest.mark.parametrize(
    "name",
    [
        "opgraph", "cluster", "plan", "errors", "options", "cost_model", "op_time", "network", "solver", "search",
        "cuts", "dataflow", "verdict", "allocations", "requested_cut", "quantities", "report", "tally", "dominance",
        "windows", "rows", "sweep", "ties",
    ],
)  # fmt: skip
def test_numbers_and_reports_know_nothing_of_torch(name: str) -> None:
    reached, waiting = set(), [f"stanza_compiler.{name}"]
    while waiting:
        module = waiting.pop()
        path = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
        if module in reached or not path.exists():
            continue
        reached.add(module)
        waiting += [other for other in _imports(path) if other.startswith("stanza_compiler.")]
        assert "torch" not in {_top(other) for other in _imports(path)}, module


def test_nobody_but_the_compiler_imports_the_command_line() -> None:
    importers = {path.name for path in SOURCES if "stanza_compiler.cli" in set(_imports(path))}
    assert importers <= {"__main__.py"}


def test_a_pass_imports_no_later_pass() -> None:
    from stanza_compiler.compiler import PASSES

    order = [*PASSES[:4], "coupling", "measure", *PASSES[4:]]
    earlier_by_nature = {("legality", "coupling")}  # legality takes what coupling found
    for path in (ROOT / "passes").glob("*.py"):
        for name in _imports(path):
            other = name.removeprefix("stanza_compiler.passes.")
            if other == name or path.stem not in order or (path.stem, other) in earlier_by_nature:
                continue
            assert order.index(other) < order.index(path.stem), (path.stem, other)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_every_package_that_is_imported_is_declared(path: Path) -> None:
    outside = {_top(name) for name in _imports(path) if not name.startswith(".")}
    assert outside <= {"stanza_compiler", *THIRD_PARTY, *sys.stdlib_module_names}
