"""How many threads a host's FC part computes with."""

import math
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with `count` threads in here."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def idle_cores(available: int) -> Executor | None:
    """Threads, one core each, for those of `available` that are idle while this thread computes, where it takes one."""
    if torch.get_num_threads() > 1 or available == 1:
        return None
    return ThreadPoolExecutor(available - 1, initializer=torch.set_num_threads, initargs=(1,))


def available_cores(*, mounts: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """The cores that this process may keep busy: those it may run on, at most what its control groups grant it.

    `mounts` is where control groups are mounted, `own` says which are this process's (versions 1 and 2 alike).
    """
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    for line in own.read_text(encoding="utf-8").splitlines() if own.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "cpu", "cpu,cpuacct"):
            folder = (mounts / controllers).joinpath(*Path(path).parts[1:])
            # A process in a container may see the path that its group has outside of it.
            for group in (folder, *folder.parents):
                cores = min(cores, _granted(group))
                if group == mounts:
                    break
    return max(1, math.floor(cores))


def _granted(group: Path) -> float:
    """The cores that one control group grants: quota over period, endless when it has none."""
    files = [group / "cpu.max"], [group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us"]
    for names in files:
        if all(name.exists() for name in names):
            quota, period = " ".join(name.read_text(encoding="utf-8") for name in names).split()
            return float("inf") if quota in ("max", "-1") else int(quota) / int(period)
    return float("inf")
