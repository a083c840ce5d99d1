"""What a rehearsal could leave on a machine."""

import os
import subprocess
from pathlib import Path


def leftovers(*pids: int) -> list[str]:
    """Interfaces, cgroups and processes of sandboxes that this test made, in this process or in those of `pids`."""
    cgroups = [f"stanza-rehearse-{pid}" for pid in (os.getpid(), *pids)]
    found = [str(path) for name in cgroups for path in Path("/sys/fs/cgroup").glob(f"**/{name}")]
    return [*found, *_interfaces(), *_processes()]


def _interfaces() -> list[str]:
    """Bridges and pairs that are not in a sandbox's own namespace."""
    try:
        shown = subprocess.run(["ip", "-oneline", "link"], check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        return []  # a machine without the tool makes none either
    names = [line.split(":")[1].strip().partition("@")[0] for line in shown.splitlines()]
    return [name for name in names if name == "switch" or (name[0] == "h" and name[1:].isdigit())]


def _processes() -> list[str]:
    """Those that were started by the test that is running: pytest says in the environment which."""
    this_test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0].encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if this_test in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # ended meanwhile
    return found
