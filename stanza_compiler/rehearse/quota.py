"""A CPU quota for each emulated host, by cgroup v1 or v2."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stanza_compiler.rehearse.errors import SandboxError

PERIOD_US = 20_000
PLACE = "--host-cpus"
REMEDY = "run as root, or where cgroups with the cpu controller are delegated to you, or leave the flag out"


@contextmanager
def quotas(hosts: int, cpus: float | None) -> Iterator[tuple[str, ...]]:
    """A cgroup folder per host that holds its processes to `cpus` processors; none without a quota.

    They are gone afterwards. Raises SandboxError when cgroups can't be used here.
    """
    if cpus is None:
        yield ()
        return
    parent, is_v2 = _find_parent()
    own = parent / f"stanza-rehearse-{os.getpid()}"
    turned_on: list[Path] = []
    folders = [own / f"host{host}" for host in range(hosts)]
    try:
        try:
            if is_v2 and _turn_on(parent):
                turned_on.append(parent)
            own.mkdir()
            if is_v2:
                _turn_on(own)
            for folder in folders:
                folder.mkdir()
                quota_us = round(cpus * PERIOD_US)
                if is_v2:
                    (folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
                else:
                    (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                    (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        except OSError as error:
            raise SandboxError(PLACE, f"{error.filename}: {error.strerror}", REMEDY) from error
        yield tuple(map(str, folders))
    finally:
        for folder in (*folders, own):
            _remove(folder)
        for folder in turned_on:
            (folder / "cgroup.subtree_control").write_text("-cpu")


def _find_parent() -> tuple[Path, bool]:
    """This process's cgroup with the cpu controller, or for v2 the nearest one above that may have children."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own[controllers] = path.lstrip("/")
    for _, mount, kind, options, *_ in mounts:
        if kind == "cgroup" and "cpu" in options.split(","):
            path = next(path for controllers, path in own.items() if "cpu" in controllers.split(","))
            return Path(mount, path), False
    for _, mount, kind, *_ in mounts:
        if kind == "cgroup2" and "" in own:
            folder = Path(mount, own[""])
            for parent in (folder, *folder.parents):
                if not parent.is_relative_to(mount):
                    break
                if _may_have_children(parent):
                    return parent, True
    raise SandboxError(PLACE, "no cgroup here gives CPU quotas to its children", REMEDY)


def _may_have_children(folder: Path) -> bool:
    """Whether cgroups below it can have the cpu controller: a v2 cgroup with processes of its own can't give it."""
    try:
        if "cpu" not in (folder / "cgroup.controllers").read_text().split():
            return False
        if _turn_on(folder):
            (folder / "cgroup.subtree_control").write_text("-cpu")
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _turn_on(folder: Path) -> bool:
    """Give a v2 cgroup's children the cpu controller; whether they didn't have it."""
    control = folder / "cgroup.subtree_control"
    if "cpu" in control.read_text().split():
        return False
    control.write_text("+cpu")
    return True


def _remove(folder: Path) -> None:
    """A cgroup stays busy for a moment after its last process has ended."""
    for _ in range(200):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
        else:
            return
