"""What a rehearsal needs to know of a generated program."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stanza_compiler.errors import UsageError
from stanza_compiler.plan import SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class Emitted:
    """A folder that stanza-compile wrote, with its plan.json."""

    folder: Path
    plan: dict[str, Any]

    @property
    def gpus_per_node(self) -> int:
        return int(self.plan["cluster"]["gpus_per_node"])

    @property
    def name(self) -> str:
        return str(self.plan["source"])


def read_emitted(folder: Path, *, place: str = "OUT") -> Emitted:
    """Raises UsageError, about `place` of the command line, when `folder` is none of ours."""
    remedy = "pass a folder that stanza-compile wrote"
    for name in ("train.py", "plan.json"):
        if not (folder / name).is_file():
            raise UsageError(place, f"{folder} has no {name}", remedy)
    try:
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        version = plan["schema_version"]
        plan["cluster"]["gpus_per_node"], plan["allocation"]["placement"], plan["verdict"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            place, f"{folder / 'plan.json'} is no plan ({type(error).__name__}: {error})", remedy
        ) from error
    if version != SCHEMA_VERSION:
        raise UsageError(place, f"plan schema {version}, this version reads {SCHEMA_VERSION}", "compile it again")
    return Emitted(folder.resolve(), plan)
