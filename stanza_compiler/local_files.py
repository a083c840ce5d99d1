"""Which files of the user's own, and which packages, a model file needs."""

import ast
import sys
from collections.abc import Iterable
from pathlib import Path


def local_files(starts: Iterable[Path], root: Path) -> dict[str, Path]:
    """The files and every module below `root` that they import, however deep, by path relative to `root`."""
    found: dict[str, Path] = {}
    waiting = [*starts]
    while waiting:
        path = waiting.pop()
        key = path.relative_to(root).as_posix()
        if key in found:
            continue
        found[key] = path
        waiting += [file for name in _imported(path, root) for file in files_of(name, root)]
    return dict(sorted(found.items()))


def third_party(files: dict[str, Path], root: Path) -> tuple[str, ...]:
    """Top-level packages that `files` import and that neither Python nor the user's folder brings, sorted."""
    names = {name.partition(".")[0] for path in files.values() for name in _imported(path, root)}
    own = {name for name in names if files_of(name, root) or (root / name).is_dir()}
    return tuple(sorted(names - own - set(sys.stdlib_module_names)))


def _imported(path: Path, root: Path) -> list[str]:
    """Dotted names that a file may import; `from a import b` gives both a and a.b."""
    package = path.parent.relative_to(root).parts
    names = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)] if base else []
    return names


def files_of(name: str, root: Path) -> list[Path]:
    """The files below `root` that importing `name` runs: its own and the __init__.py of each package above."""
    parts = name.split(".")
    own = [root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")]
    above = [root.joinpath(*parts[:depth], "__init__.py") for depth in range(1, len(parts))]
    return [file for file in (*own, *above) if file.is_file()]
