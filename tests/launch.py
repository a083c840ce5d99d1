"""Builds a hand-written program of tests/programs in a folder and runs it as local processes."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stanza_compiler import runtime

PROGRAMS = Path(__file__).parent / "programs"
FORK_RANKS = Path(__file__).parent / "fork_ranks.py"
RUNTIME = Path(runtime.__file__).parent


@dataclass(frozen=True, slots=True)
class Result:
    """What one rank left behind."""

    status: int
    out: str
    err: str


def build_program(folder: Path, *names: str, weights: Mapping[str, Mapping[str, Tensor]]) -> Path:
    """Copy the programs `names`, later ones over earlier ones, with the runtime and `weights` by stage file."""
    for name in names:
        shutil.copytree(PROGRAMS / name, folder, dirs_exist_ok=True)
    shutil.copytree(RUNTIME, folder / "runtime", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    (folder / "weights").mkdir()
    for stage, tensors in weights.items():
        torch.save(dict(tensors), folder / "weights" / f"{stage}.pt")
    return folder


def edit(path: Path, old: str, new: str) -> None:
    """Replace one passage of a file."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new), encoding="utf-8")


def launch(folder: Path, world_size: int, *flags: object, timeout_s: float = 150, **environment: str) -> list[Result]:
    """Run train.py as `world_size` ranks of one machine; their results in rank order."""
    logs = Path(tempfile.mkdtemp(prefix="logs", dir=folder))
    command = [str(FORK_RANKS), str(folder / "train.py"), str(world_size), str(logs), *map(str, flags)]
    process = subprocess.Popen(
        [sys.executable, *command], env=_environment(world_size, environment), start_new_session=True
    )
    try:
        assert process.wait(timeout_s) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return [
        Result(
            int((logs / f"{rank}.status").read_text()),
            (logs / f"{rank}.out").read_text(),
            (logs / f"{rank}.err").read_text(),
        )
        for rank in range(world_size)
    ]


def launch_processes(
    folder: Path, world_size: int, *flags: object, timeout_s: float = 150, **environment: str
) -> list[Result]:
    """As `launch`, by one separate Python process per rank."""
    common = _environment(world_size, environment)
    processes = []
    with ExitStack() as stack:
        for rank in range(world_size):
            files = [stack.enter_context((folder / f"{rank}.{name}").open("w")) for name in ("out", "err")]
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(folder / "train.py"), *map(str, flags)],
                    env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=files[0],
                    stderr=files[1],
                )
            )
        deadline = time.monotonic() + timeout_s
        try:
            for process in processes:
                process.wait(max(deadline - time.monotonic(), 0.1))
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
    return [
        Result(process.returncode, (folder / f"{rank}.out").read_text(), (folder / f"{rank}.err").read_text())
        for rank, process in enumerate(processes)
    ]


def run(folder: Path, world_size: int, *flags: object, timeout_s: float = 150, **environment: str) -> Result:
    """`launch`, with every rank ending well; rank 0's result."""
    results = launch(folder, world_size, *flags, timeout_s=timeout_s, **environment)
    assert [result.status for result in results] == [0] * world_size, "\n".join(result.err for result in results)
    return results[0]


def _environment(world_size: int, more: Mapping[str, str]) -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        **os.environ,
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        **more,
    }
