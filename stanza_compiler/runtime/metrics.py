"""What rank 0 tells about each step."""

import json
import time
from pathlib import Path

import torch
import torch.distributed as dist

from .layout import Layout
from .trainer import Record
from .transfer import waiting_for

TERMS = (
    "conv_forward_s",
    "up_s",
    "fc_forward_s",
    "fc_backward_s",
    "down_s",
    "conv_backward_s",
    "conv_allreduce_exposed_s",
    "fc_exposed_s",
    "optimizer_s",
)
# Measured beside the terms: what tells the way down from the host's own work, and a host's work that others may hide.
_PHASES = (*TERMS, "round_trip_s", "turnaround_s", "fc_late_s")

_CONV_REST = ("conv_backward_s", "conv_allreduce_exposed_s", "optimizer_s")


class Reporter:
    """Gathers the ranks' records without waiting: a step is reported when the next one ends.

    Every rank has to call `step` once a step and `close` at the end.
    """

    def __init__(self, layout: Layout, *, rank: int, group: dist.ProcessGroup | None, metrics: Path | None) -> None:
        self._layout, self._rank, self._group = layout, rank, group
        self._file = metrics.open("w", encoding="utf-8") if metrics is not None and rank == 0 else None
        self._under_way: tuple[int, int, float, list[torch.Tensor], dist.Work | None] | None = None
        self._ended = time.perf_counter()
        self._printed = float("-inf")

    def step(self, number: int, record: Record, samples: int) -> None:
        """Take this rank's record of a step that trained `samples` samples."""
        self._report(last=False)
        now = time.perf_counter()
        step_s = max(now - self._ended, 1e-9)
        self._ended = now
        seconds = [record.seconds.get(phase, -1.0) for phase in _PHASES]
        own = torch.tensor([record.loss_sum, record.count, float(record.bytes_sent), *seconds], dtype=torch.float64)
        if self._group is None:
            self._under_way = (number, samples, step_s, [own], None)
        else:
            everyones = [torch.empty_like(own) for _ in range(dist.get_world_size(self._group))]
            work = dist.all_gather(everyones, own, group=self._group, async_op=True)
            self._under_way = (number, samples, step_s, everyones, work)

    def close(self) -> None:
        """Report the last step."""
        try:
            self._report(last=True)
        finally:
            if self._file is not None:
                self._file.close()

    def _report(self, *, last: bool) -> None:
        if self._under_way is None:
            return
        number, samples, step_s, vectors, work = self._under_way
        self._under_way = None
        if work is not None:
            with waiting_for("records of all ranks"):
                work.wait()
        if self._rank != 0:
            return
        rows = [vector.tolist() for vector in vectors]
        count = sum(row[1] for row in rows)
        line = {
            "step": number,
            "loss": sum(row[0] for row in rows) / count if count else 0.0,
            "samples": samples,
            "samples_per_s": samples / step_s,
            "bytes_sent": int(sum(row[2] for row in rows)),
            "times": _times([dict(zip(_PHASES, row[3:], strict=True)) for row in rows], self._layout),
        }
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        now = time.perf_counter()
        if last or now - self._printed >= 1.0:
            self._printed = now
            print(f"step {number}  loss {line['loss']:.6g}  {line['samples_per_s']:.1f} samples/s", flush=True)


def _times(ranks: list[dict[str, float]], layout: Layout) -> dict[str, float]:
    """Each term's maximum over the ranks that have it (-1 says that a rank has not).

    `down_s` needs no common clock: of a host's ranks, the shortest round trip less the host's own share of it.
    """
    times = {term: max(rank[term] for rank in ranks) for term in TERMS}
    for host, block in zip(layout.hosts, layout.blocks, strict=True) if len(ranks) > 1 else ():
        trips = [ranks[rank]["round_trip_s"] for rank in block if ranks[rank]["round_trip_s"] >= 0]
        if trips:
            times["down_s"] = max(times["down_s"], min(trips) - max(ranks[host]["turnaround_s"], 0.0), 0.0)
    if any(rank["fc_late_s"] >= 0 for rank in ranks):
        times["fc_exposed_s"] = _exposed(ranks, layout, max(times["down_s"], 0.0))
    return {term: seconds for term, seconds in times.items() if seconds >= 0}


def _exposed(ranks: list[dict[str, float]], layout: Layout, down_s: float) -> float:
    """By how much the rest of the step takes longer on the hosts than on the other CONV ranks.

    host   late gradients, their sum, update; colocated: CONV's backward, wait, update   ──┐ exposed
    rank   down, CONV's backward, wait for its sums, update ─────────────────────────────┘ │
    """

    def rest(rank: int, *phases: str) -> float:
        return sum(max(ranks[rank][phase], 0.0) for phase in (*phases, *_CONV_REST))

    others = [rest(rank) for rank in range(layout.conv_workers) if rank not in layout.hosts]
    if not others:
        return max(ranks[host]["fc_late_s"] for host in layout.hosts)
    return max(max(rest(host, "fc_late_s") for host in layout.hosts) - down_s - max(others), 0.0)
