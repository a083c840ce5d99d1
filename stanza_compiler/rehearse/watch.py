"""A run observed: its steps as it reports them, and what crosses the wires meanwhile."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stanza_compiler.rehearse.hosts import Hosts, Traffic
from stanza_compiler.rehearse.messages import Failure, Measured, Run
from stanza_compiler.rehearse.ranks import logs

POLL_S = 0.003
# How long ranks may take to follow one that has failed.
GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class Moment:
    """The counters at one time."""

    at_s: float
    cpu_s: float
    traffic: list[Traffic]


def watch(
    run: Run,
    processes: list[subprocess.Popen[bytes]],
    hosts: Hosts,
    *,
    on_step: Callable[[int], None],
    stopped: Callable[[], bool],
) -> Measured | Failure | None:
    """Until the steps are measured and the processes have ended, or it fails; None when `stopped` says so.

    `on_step` is told of each step that was reported.
    """
    metrics, lines = _Lines(Path(run.metrics)), list[dict[str, object]]()
    first = last = None
    progress_at = time.monotonic()
    enough = False
    while not stopped():
        # Looked at before the file: what a rank has written before it ended must be seen.
        states = [process.poll() for process in processes]
        for line in metrics.read():
            lines.append(line)
            progress_at = time.monotonic()
            on_step(len(lines))
            if len(lines) == run.warm_up:
                first = _moment(hosts)
            elif first is not None and not enough:
                last = _moment(hosts)
                measured = len(lines) - run.warm_up
                late = last.at_s - first.at_s > run.patience_s and measured >= 2
                if late or measured == run.steps:
                    enough = True
                    if late and measured < run.steps:
                        return _measured(run, lines, first, last)
        if any(states):
            return _failure(run, processes, next(rank for rank, state in enumerate(states) if state))
        if all(state == 0 for state in states):
            if not enough or first is None or last is None:
                return Failure(-1, f"ended after {len(lines)} steps, before they could be measured")
            return _measured(run, lines, first, last)
        if time.monotonic() - progress_at > run.timeout_s:
            return Failure(-1, f"nothing new for {run.timeout_s:g} s, after {len(lines)} steps")
        time.sleep(POLL_S)
    return None


class _Lines:
    """The complete lines of a growing file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def read(self) -> list[dict[str, object]]:
        """Those that are new."""
        try:
            if os.stat(self._path).st_size <= self._offset:
                return []
        except FileNotFoundError:
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            complete, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        return [json.loads(line) for line in complete.splitlines()]


def _moment(hosts: Hosts) -> Moment:
    user, nice, system, _, _, interrupts, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
    busy = user + nice + system + interrupts + soft
    return Moment(time.monotonic(), busy / os.sysconf("SC_CLK_TCK"), hosts.traffic())


def _measured(run: Run, lines: list[dict[str, object]], first: Moment, last: Moment) -> Measured:
    pairs = list(zip(first.traffic, last.traffic, strict=True))
    return Measured(
        lines=tuple(lines[run.warm_up : run.warm_up + run.steps]),
        sent_bytes=tuple(after.sent - before.sent for before, after in pairs),
        received_bytes=tuple(after.received - before.received for before, after in pairs),
        elapsed_s=last.at_s - first.at_s,
        cpu_s=last.cpu_s - first.cpu_s,
    )


def _failure(run: Run, processes: list[subprocess.Popen[bytes]], first: int) -> Failure:
    """Of the rank that ended first, or of another one if that says more: some are torn down by the others' end."""
    time.sleep(GRACE_S)
    failed = [first, *(rank for rank, process in enumerate(processes) if process.poll() and rank != first)]
    reasons = [(rank, _reason(logs(run, rank)[1])) for rank in failed]
    rank, reason = next(((rank, reason) for rank, reason in reasons if reason), (first, ""))
    status = f"exit status {processes[rank].returncode}"
    return Failure(rank, f"{status}: {reason}" if reason else status)


def _reason(log: Path) -> str:
    """The last line that tells of an error; a program's own `error:` line where it left one."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    own = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    others = [line.strip() for line in lines if re.match(r"\s*(what\(\):|[\w.]*(Error|Exception)\b)", line)]
    return (own or others or [""])[-1]
