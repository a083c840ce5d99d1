"""torch.distributed.pipelining: each rank a stage of the model, micro-batches pass from one to the next."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline

from stanza_compiler.rehearse.peers.session import Session, Whole, run

# Micro-batches a stage: more fill the pipeline better, and each is smaller.
MICRO_BATCHES_PER_STAGE = 4


class Positional(nn.Module):
    """The model called with its tensors in a row, as the splitter wants it."""

    def __init__(self, whole: Whole, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self._names = whole.model, tuple(names)

    def forward(self, *tensors: Tensor) -> Any:
        return self.model.run(dict(zip(self._names, tensors, strict=True)))


class Pipeline:
    """The stages take about the same time; every rank updates its own."""

    def __init__(self, session: Session) -> None:
        self._session, size, items = session, session.size, session.first_items
        self._micro_batches = micro_batches(len(items), size)
        batch = session.source.load(items[: len(items) // self._micro_batches])
        self._names = tuple(batch.inputs)
        refuse_tied(session.whole)
        whole = Positional(session.whole, self._names)
        tensors = tuple(batch.inputs.values())
        with session.runtime("standin").unchanged_buffers(whole):
            points: list[Any] = [split_points(whole, tensors, size)]
        dist.broadcast_object_list(points, src=0)  # each rank's clock would choose its own
        pipe = pipeline(whole, tensors, split_spec=dict.fromkeys(points[0], SplitPoint.BEGINNING))
        if pipe.num_stages != size:
            raise RuntimeError(f"the model was split into {pipe.num_stages} stages for {size} ranks")
        stage = pipe.build_stage(session.rank, session.device, dist.group.WORLD)
        self._stage: nn.Module = stage.submod
        self._schedule = ScheduleGPipe(stage, self._micro_batches, loss_fn=self._loss)
        self._updater = session.updater(self._stage)
        self._is_last = session.rank == size - 1

    def step(self, items: Sequence[int]) -> None:
        if len(items) % self._micro_batches:
            raise RuntimeError(f"{len(items)} items are no {self._micro_batches} equal micro-batches")
        if self._session.rank == 0:
            self._schedule.step(*self._session.source.load(items).inputs.values())
        elif self._is_last:
            self._schedule.step(target=self._session.source.load(items).targets)
        else:
            self._schedule.step()
        if self._updater is not None:
            self._session.update(self._updater)

    def state(self) -> dict[str, Tensor] | None:
        own = {name.removeprefix("model."): value.detach() for name, value in self._stage.named_parameters()}
        parts: list[Any] = [None] * self._session.size
        dist.all_gather_object(parts, own)
        return None if self._session.rank else {name: value for part in parts for name, value in part.items()}

    def _loss(self, outputs: Any, targets: Any) -> Tensor:
        samples = next(iter(self._session.runtime("tree").tensors_of(outputs))).size(0)
        loss = self._session.runtime("loss").measure(self._session.program.hooks, outputs, targets, samples=samples)
        if loss.counted:
            raise RuntimeError("a loss of (sum, count) is no mean over micro-batches")
        mean: Tensor = loss.mean_over(loss.count)
        return mean


def micro_batches(samples: int, stages: int) -> int:
    """The largest number of equal micro-batches up to four a stage."""
    fitting = [count for count in range(stages, MICRO_BATCHES_PER_STAGE * stages + 1) if samples % count == 0]
    if not fitting:
        raise RuntimeError(f"{samples} samples have no equal micro-batches for {stages} stages")
    return fitting[-1]


def refuse_tied(module: nn.Module) -> None:
    """A tied parameter would be copied into both stages and each copy trained by itself."""
    first: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            raise RuntimeError(f"'{name}' is tied to '{first[id(parameter)]}': the stages' copies would not stay equal")


def split_points(module: nn.Module, tensors: Sequence[Tensor], stages: int) -> tuple[str, ...]:
    """Modules before which to split, so that the slowest stage is as fast as it can be; measured on one call.

    The first stage begins before the first module. A module that writes its input can't begin a stage.
    """
    starts, end = _starts(module, tensors)
    calls = [name for name, _ in starts]
    modules = dict(module.named_modules())
    able = [
        (name, at) for name, at in starts[1:] if calls.count(name) == 1 and not getattr(modules[name], "inplace", False)
    ]
    if len(able) < stages - 1:
        raise RuntimeError(f"{len(able)} modules could begin a stage, {stages - 1} are needed")
    chosen = balanced([starts[0][1], *(at for _, at in able), end], stages)
    return tuple(able[index - 1][0] for index in chosen)


def balanced(times: Sequence[float], parts: int) -> tuple[int, ...]:
    """Which of `times` the parts after the first begin at, so that the longest part is as short as possible.

    >>> balanced([0, 1, 2, 3, 8], 2), balanced([0, 1, 2, 3, 8], 3)
    ((3,), (2, 3))
    """
    # By the time at which the last part ends: the longest part so far, and where parts began.
    best: dict[int, tuple[float, tuple[int, ...]]] = {end: (times[end] - times[0], ()) for end in range(1, len(times))}
    for part in range(1, parts):
        best = {
            end: min(
                (max(longest, times[end] - times[begin]), (*begins, begin))
                for begin, (longest, begins) in best.items()
                if begin < end
            )
            for end in range(part + 1, len(times))
        }
    return best[len(times) - 1][1]


def _starts(module: nn.Module, tensors: Sequence[Tensor]) -> tuple[list[tuple[str, float]], float]:
    """When each leaf module is called, and when the call ends."""
    found: list[tuple[str, float]] = []
    handles = [
        inner.register_forward_pre_hook(lambda *_, name=name: found.append((name, time.perf_counter())))
        for name, inner in module.named_modules()
        if name and not any(inner.children())
    ]
    with torch.no_grad():
        for _ in range(2):  # the first call is slower
            found.clear()
            module(*tensors)
    end = time.perf_counter()
    for handle in handles:
        handle.remove()
    return found, end


if __name__ == "__main__":
    run(Pipeline, argv=sys.argv[1:])
