"""Runs a program whose gradients are summed by nobody: what its ranks compute, at once and in its own order.

    python without_sums.py FOLDER SCRIPT FLAGS...

Every asynchronous allreduce, DistributedDataParallel's among them, is answered on the spot. FOLDER/rank<r>.json then
holds, step by step, when each was started, of how many bytes, over which ranks, and when its result was waited for.
"""

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.parallel
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

Event = tuple[str, float, int, list[int]]


class Recorder:
    """This rank's events: `sum` started, `wait` for those over the same ranks, `update` by an optimiser."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def note(self, kind: str, size: int = 0, group: Any = None) -> None:
        ranks = dist.get_process_group_ranks(group) if kind != "update" else []
        self.events.append((kind, time.perf_counter(), size, ranks))


class Answered:
    """The work of an allreduce that has not been done."""

    def __init__(self, recorder: Recorder, tensor: Tensor, group: Any) -> None:
        self._recorder, self._tensor, self._group = recorder, tensor, group

    def wait(self, timeout: Any = None) -> bool:
        self._recorder.note("wait", group=self._group)
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> "torch.futures.Future[list[Tensor]]":
        return answer([self._tensor])


def answer(value: Any) -> "torch.futures.Future[Any]":
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(value)
    return future


def install(recorder: Recorder) -> None:
    """Answer allreduces from now on."""
    all_reduce, backward = dist.all_reduce, torch.autograd.backward
    replicas: list[Any] = []

    def answered(tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        if not async_op:
            return all_reduce(tensor, op, group, async_op)  # a count, or a setting that ranks agree on
        recorder.note("sum", tensor.nbytes, group)
        return Answered(recorder, tensor, group)

    class Replica(DistributedDataParallel):
        """Has a hook that answers, unless the program gives it one of its own."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._answers: bool | None = None
            replicas.append(self)

        def register_comm_hook(self, state: object, hook: Any) -> None:
            self._answers = self._answers or False
            super().register_comm_hook(state, hook)

        def forward(self, *inputs: Any, **options: Any) -> Any:
            if self._answers is None:
                self._answers = True
                self.register_comm_hook(None, lambda state, bucket: self._answer(bucket))
            return super().forward(*inputs, **options)  # type: ignore[no-untyped-call]  # torch gives it no types

        def _answer(self, bucket: Any) -> "torch.futures.Future[Tensor]":
            recorder.note("sum", bucket.buffer().nbytes, self.process_group)
            return answer(bucket.buffer())

    def watched(*arguments: Any, **options: Any) -> None:
        backward(*arguments, **options)
        # DistributedDataParallel waits for its sums before backward returns.
        if any(replica._answers for replica in replicas) and recorder.events[-1:] and recorder.events[-1][0] == "sum":
            recorder.note("wait", group=replicas[-1].process_group)

    dist.all_reduce = answered
    torch.autograd.backward = watched
    torch.nn.parallel.DistributedDataParallel = Replica  # type: ignore[misc]  # for imports that follow
    register_optimizer_step_post_hook(lambda *_: recorder.note("update"))


def main(folder: Path, script: Path, *flags: str) -> None:
    recorder = Recorder()
    install(recorder)
    sys.argv = [str(script), *flags]
    sys.path[0] = str(script.parent)
    runpy.run_path(str(script), run_name="__main__")
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(recorder.events), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
