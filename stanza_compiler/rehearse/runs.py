"""The runs of one rehearsal and what they gave."""

import json
import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from stanza_compiler.rehearse.contenders import PROGRAM, Contender, command
from stanza_compiler.rehearse.errors import RunError
from stanza_compiler.rehearse.messages import Failure, Measured, Run
from stanza_compiler.rehearse.options import Options
from stanza_compiler.rehearse.sandbox import Sandbox
from stanza_compiler.rehearse.summary import Summary, summarise
from stanza_compiler.rehearse.timeline import Event, steps_of


class Kind(Enum):
    """How a contender is run: on the rehearsed links, on links without limit, on those with sums answered at once."""

    SHAPED = "on the links"
    UNSHAPED = "without limits"
    ALONE = "without sums"


class Runs:
    """Runs contenders in a sandbox; `show` is told what goes on."""

    def __init__(self, options: Options, inside: Sandbox, folder: Path, show: Callable[[str], None]) -> None:
        self._options, self._inside, self._folder, self._show = options, inside, folder, show
        self._measured: dict[tuple[str, Kind], list[Measured]] = {}
        self._failures: dict[tuple[str, Kind], str] = {}

    def run(self, contender: Contender, kind: Kind) -> None:
        """Run it once more, unless it has failed; raises RunError when it is the program itself that fails."""
        if self.failure(contender.name, kind):
            return
        result = self._run(contender, kind)
        if isinstance(result, Measured):
            self._measured.setdefault((contender.name, kind), []).append(result)
            return
        where = f"rank {result.rank}" if result.rank >= 0 else "all ranks"
        if contender.name == PROGRAM and kind != Kind.ALONE:
            remedy = "run it by torchrun to see whether it fails without emulated hosts as well"
            raise RunError(f"{contender.name}, {where}", result.what, remedy)
        self._failures[contender.name, kind] = f"{where}: {result.what}"

    def failure(self, name: str, kind: Kind) -> str:
        """Why it has no figures; empty when it has."""
        return self._failures.get((name, Kind.SHAPED), "") or self._failures.get((name, kind), "")

    def summary(self, name: str, kind: Kind) -> Summary | None:
        """The measured steps of all its runs of this kind, None without any."""
        found = self._measured.get((name, kind))
        return summarise(found, processors=os.cpu_count() or 1) if found and not self.failure(name, kind) else None

    def events(self, name: str, ranks: int) -> list[list[list[Event]]]:
        """What each rank did in each measured step when sums were answered at once; raises ValueError."""
        found = []
        first, steps = self._options.warm_up, self._options.steps
        for rank in range(ranks):
            path = self._folder_of(name, Kind.ALONE, 0) / f"rank{rank}.json"
            events = [Event(kind, at_s, size, tuple(group)) for kind, at_s, size, group in json.loads(path.read_text())]
            found.append(steps_of(events, self._all_steps)[first : first + steps])
        return found

    @property
    def _all_steps(self) -> int:
        # A program tells of a step when the next one ends; the same moment of two steps is compared.
        return self._options.warm_up + self._options.steps + 1

    def _folder_of(self, name: str, kind: Kind, number: int) -> Path:
        return self._folder / f"{name}-{kind.name.lower()}-{number}"

    def _run(self, contender: Contender, kind: Kind) -> Measured | Failure:
        options, number = self._options, len(self._measured.get((contender.name, kind), ()))
        folder = self._folder_of(contender.name, kind, number)
        folder.mkdir()
        metrics = folder / "metrics.jsonl"
        run = Run(
            command=command(
                contender,
                steps=self._all_steps,
                metrics=metrics,
                answer_sums=folder if kind is Kind.ALONE else None,
            ),
            folder=str(folder),
            metrics=str(metrics),
            ranks_per_host=options.emitted.gpus_per_node,
            bit_per_s=options.bit_per_s if kind is Kind.SHAPED else None,
            warm_up=options.warm_up,
            steps=options.steps,
            # Without sums the ranks' notes are wanted, which they write at the end.
            patience_s=options.patience_s if kind is not Kind.ALONE else options.timeout_s * self._all_steps,
            timeout_s=options.timeout_s,
        )
        doing = contender.name if kind is Kind.SHAPED else f"{contender.name} {kind.value}"
        self._show(f"{doing}: starting")
        return self._inside.run(run, on_step=lambda step: self._show(f"{doing}: step {step} of {self._all_steps}"))
