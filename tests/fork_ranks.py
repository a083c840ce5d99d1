"""Runs train.py as several ranks forked from one process that has imported torch: starting is what costs most.

    python fork_ranks.py TRAIN_PY WORLD_SIZE LOGS FLAGS...

Rank r writes LOGS/r.out and LOGS/r.err; LOGS/r.status holds its exit status.
"""

import os
import runpy
import sys
from pathlib import Path

import torch._dynamo  # the first optimiser imports it
import torch.distributed
import torch.nn.parallel

__all__ = ["torch"]


def main() -> None:
    train, world_size, logs, *flags = sys.argv[1:]
    children = {}
    for rank in range(int(world_size)):
        child = os.fork()
        if child == 0:
            _become(rank, Path(logs))
            sys.argv = [train, *flags]
            sys.path[0] = str(Path(train).parent)
            runpy.run_path(train, run_name="__main__")
            return
        children[child] = rank
    for child, rank in children.items():
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        (Path(logs) / f"{rank}.status").write_text(str(status))


def _become(rank: int, logs: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(logs / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)


if __name__ == "__main__":
    main()
