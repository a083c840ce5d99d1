"""The first process of a sandbox: builds the hosts, runs what it is told, ends when nobody tells it any more.

It reads JSON lines from stdin (a Network, then Runs) and answers each with JSON lines on stdout. When its stdin
closes, it kills the hosts' processes and leaves; the kernel ends whatever still runs in its namespaces.
"""

import json
import os
import select
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stanza_compiler.rehearse.hosts import Hosts
from stanza_compiler.rehearse.messages import Failure, Measured, Network, Run
from stanza_compiler.rehearse.ranks import started
from stanza_compiler.rehearse.watch import watch


def main() -> None:
    line = sys.stdin.readline()
    if not line:
        return
    network = Network(**json.loads(line))
    try:
        hosts = Hosts(network.hosts)
    except (OSError, subprocess.SubprocessError) as error:
        _tell(error=_said(error))
        return
    _tell(ready=True)
    number = 0
    try:
        while line := sys.stdin.readline():
            number += 1
            _answer(Run(**json.loads(line)), network, hosts, number)
    finally:
        for folder in network.quota_folders:
            _leave(Path(folder))


def _answer(run: Run, network: Network, hosts: Hosts, number: int) -> None:
    try:
        hosts.shape(run.bit_per_s)
        Path(run.metrics).unlink(missing_ok=True)
        with started(run, network, hosts, number) as processes:
            result = watch(run, processes, hosts, on_step=lambda step: _tell(step=step), stopped=_stopped)
    except (OSError, subprocess.SubprocessError) as error:
        result = Failure(-1, _said(error))
    except ValueError as error:
        result = Failure(-1, f"wrote metrics that are no JSON lines ({error})")
    match result:
        case Measured():
            _tell(measured=asdict(result))
        case Failure():
            _tell(failure=asdict(result))


def _stopped() -> bool:
    """Whether stdin was closed: nothing else comes while a run is under way."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def _leave(folder: Path) -> None:
    """Remove a quota's folder, which the command does too unless it was killed."""
    for path in (folder, folder.parent):
        try:
            path.rmdir()
        except OSError:
            continue  # gone already, or another host's folder is still in it


def _said(error: OSError | subprocess.SubprocessError) -> str:
    """What a command complained of."""
    if isinstance(error, subprocess.CalledProcessError):
        return f"{' '.join(error.cmd)}: {error.stderr.decode(errors='replace').strip()}"
    return str(error)


def _tell(**message: Any) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
