"""Namespaces of our own with emulated hosts in them, which vanish however this process ends."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stanza_compiler.rehearse.errors import RunError, SandboxError
from stanza_compiler.rehearse.messages import Failure, Measured, Network, Run
from stanza_compiler.rehearse.quota import quotas

# A namespace of users lets anybody make the others; where they are forbidden, root needs none.
UNSHARE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
WAYS = ([*UNSHARE, "--user", "--map-root-user"], UNSHARE)
TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "tc": "iproute2"}
GRACE_S = 10
ROOT = Path(__file__).parents[2]  # where the peers find this package, installed or not


class Sandbox:
    """Runs programs on its hosts, one after the other."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, run: Run, *, on_step: Callable[[int], None]) -> Measured | Failure:
        """Run a program to its end, telling of each step; raises RunError when the sandbox itself broke."""
        self.send(asdict(run))
        while True:
            message = self.receive()
            if "step" in message:
                on_step(message["step"])
            elif "measured" in message:
                return _measured(**message["measured"])
            else:
                return Failure(**message["failure"])

    def send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RunError("sandbox", f"its first process ended with status {self._process.wait()}", "run it again")
        message: dict[str, Any] = json.loads(line)
        return message


def _measured(
    lines: list[dict[str, Any]], sent_bytes: list[int], received_bytes: list[int], **seconds: Any
) -> Measured:
    """JSON knows no tuples."""
    return Measured(tuple(lines), tuple(sent_bytes), tuple(received_bytes), **seconds)


@contextmanager
def sandbox(hosts: int, cpus: float | None) -> Iterator[Sandbox]:
    """`hosts` emulated hosts, each held to `cpus` processors; nothing of it is left afterwards.

    Raises SandboxError when this machine doesn't allow it.
    """
    way = _find_way()
    with quotas(hosts, cpus) as folders:
        process = subprocess.Popen(
            [*way, sys.executable, "-m", "stanza_compiler.rehearse.inside"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))},
            start_new_session=True,  # Ctrl-C is ours to answer
        )
        try:
            inside = Sandbox(process)
            inside.send(asdict(Network(hosts, folders)))
            answer = inside.receive()
            if "error" in answer:
                raise SandboxError("sandbox", answer["error"], "a kernel with veth, bridge and tbf is needed")
            yield inside
        finally:
            _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    """Close its stdin, by which it knows; kill it when that doesn't help: its namespaces' processes go with it."""
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        try:
            pipe.close()
        except BrokenPipeError:
            continue  # it is gone already
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _find_way() -> list[str]:
    """The command that makes namespaces here."""
    if sys.platform != "linux":
        raise SandboxError("sandbox", f"hosts are emulated by Linux, this is {sys.platform}", "run it on Linux")
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise SandboxError("sandbox", f"the command {tool} is missing", f"install {package}")
    said = ""
    for way in WAYS:
        tried = subprocess.run([*way, "ip", "link", "add", "b0", "type", "bridge"], capture_output=True, text=True)
        if tried.returncode == 0:
            return way
        said = said or tried.stderr.strip()
    raise SandboxError("sandbox", f"namespaces can't be made here ({said})", "run as root, or allow user namespaces")
