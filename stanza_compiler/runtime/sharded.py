"""One synchronous step of a program whose FC layers are split over the hosts."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .agreement import agree
from .batches import Batches
from .codecs import Codecs
from .conv_side import ConvSide
from .counting import gather
from .groups import Groups
from .layout import Layout
from .loss import Loss
from .merge import in_order
from .peers import Peers
from .plan_file import PlanFile
from .program import Program
from .receiver import Receiver
from .routes import Route, find_kinds, find_routes
from .sampler import split_items
from .sender import Sender
from .sharded_fc_side import ShardedFcSide
from .sharded_weights import gather_columns
from .standin import REHEARSAL, standin_items, unchanged_buffers
from .stopwatch import Stopwatch
from .trainer import Record
from .tree import flatten
from .weights import load_stage


class ShardedTrainer:
    """A CONV rank that may hold some columns of every layer of FC; the order of segments is conv-fc.

    CONV rank i                    every host j
    h_i = conv(x_i)
    h_i, targets  ──to all──>      H = cat(h_i); its columns of each layer; the loss of the whole batch
    sum_j dh_ij   <──from all──    its part of dH, in slices
    CONV backward and allreduce    its columns' gradients are complete: nothing to sum, update
    """

    def __init__(
        self,
        program: Program,
        plan: PlanFile,
        layout: Layout,
        groups: Groups,
        codecs: Codecs,
        *,
        batches: Batches,
        rank: int,
        device: torch.device,
        seed: int,
        facts: Mapping[str, object],
    ) -> None:
        """`facts` have to be equal on all ranks."""
        self._plan, self._layout, self._groups, self._rank = plan, layout, groups, rank
        self._device, self._facts, self._codecs = device, facts, codecs
        self._conv_route, self._fc_route = find_routes(program.segments)
        self._conv = _ConvSide(
            program,
            layout,
            groups,
            find_kinds(program, plan),
            codecs,
            stage=load_stage(program, "conv", device),
            batches=batches,
            rank=rank,
            device=device,
            bucket_bytes=plan.bucket_bytes,
        )
        self._fc: ShardedFcSide | None = None
        if rank in layout.hosts:
            peers = Peers(layout.hosts.index(rank), layout.hosts, groups.hosts)
            self._fc = ShardedFcSide(program, plan.sharding.columns, peers, seed=seed, device=device)

    def start(self, items: Sequence[int]) -> None:
        """Rehearse a step on stand-ins, the loss included, having agreed on the message's form.

        Raises DisagreementError naming rank and tensor.
        """
        conv, fc, watch = self._conv, self._fc, Stopwatch()
        agree(self._facts, None, self._groups.meta)
        parts = [standin_items(part, items) for part in split_items(tuple(items), self._layout.conv_workers)]
        samples = [len(part) for part in parts]
        conv.load(REHEARSAL, parts[self._rank])
        with unchanged_buffers(conv.stage):
            before = _random_states(self._device)
            conv.forward(self._conv_route, REHEARSAL, watch)
            # One process draws FC's masks after CONV's: the same ones as here if CONV draws nothing.
            draws = any(gather(not torch.equal(before, _random_states(self._device)), self._groups.meta))
            message = agree({}, conv.describe(self._fc_route), self._groups.meta)
            assert message is not None
            channel = self._groups.channels[self._fc_route.number]
            if fc is not None:
                fc.receiver = Receiver(self._rank, channel, message, self._device, self._codecs.boundary)
                fc.mask_stream = -1 if draws else 0
            local = fc.receiver if fc is not None else None
            conv.senders[self._fc_route.number] = Sender(self._rank, channel, message, local, self._codecs.boundary)
            conv.send(self._fc_route, REHEARSAL, samples)
            if fc is not None:
                fc.receive(REHEARSAL, samples, watch)
                taker = fc.forward(self._fc_route, REHEARSAL, watch)
                if taker and self._rank == 0:
                    print(f"note: loss_fn takes all scores ({taker}), so that every host gathers them", flush=True)
            conv.finish_rehearsal(self._conv_route)
            if fc is not None:
                fc.finish_rehearsal()

    def step(self, number: int, items: Sequence[int], following: Sequence[int] = ()) -> Record:
        """Train on one global batch."""
        conv, fc, watch = self._conv, self._fc, Stopwatch()
        parts = split_items(tuple(items), self._layout.conv_workers)
        samples = [len(part) for part in parts]
        conv.load(number, parts[self._rank])
        conv.forward(self._conv_route, number, watch)
        sent = conv.send(self._fc_route, number, samples)
        if fc is not None:
            fc.receive(number, samples, watch)
            fc.forward(self._fc_route, number, watch)
            fc.backward(watch)
        conv.collect(self._fc_route, watch)
        conv.backward(self._conv_route, samples, watch)
        conv.load_ahead(number + 1, split_items(tuple(following), self._layout.conv_workers)[self._rank])
        loss: Loss | None = fc.loss if fc is not None and self._rank == 0 else None  # every host has the same
        if fc is not None:
            sent += fc.finish(watch)
        sent += conv.finish(watch)
        conv.update(watch)
        return Record(loss.value if loss else 0.0, loss.count if loss else 0.0, sent, watch.seconds)

    def state(self) -> dict[str, Any] | None:
        """CONV rank 0's tensors and all hosts' columns, merged on rank 0."""
        fc_state = None
        if self._fc is not None:
            fc_state = gather_columns(self._fc.stage, self._layout.hosts, self._rank, self._groups.meta)
        if self._rank != 0:
            return None
        assert fc_state is not None
        return in_order(self._plan.state_names, fc_state, self._conv.stage.state_dict())


def _random_states(device: torch.device) -> torch.Tensor:
    """What the processor's generator will draw next, and the GPU's where this rank computes on one."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


class _ConvSide(ConvSide):
    """A CONV rank whose part goes to every host, and which adds the hosts' parts of its gradient."""

    def send(self, route: Route, step: int, samples: Sequence[int]) -> int:
        """Send every host this rank's part; return the bytes sent."""
        if self._part.batch is None:
            return 0
        targets, template = flatten(self._targets(route, self._part.batch))
        self.senders[route.number].check_targets(template)
        tensors = [*(self._part.values[name] for name in route.crossing), *targets]
        sent = sum(
            self.senders[route.number].send(step, tensors, peer=host, samples=samples[self._rank], of=sum(samples))
            for host in self._others_first
        )
        self._part.sent_at = time.perf_counter()
        return sent

    def collect(self, route: Route, watch: Stopwatch) -> None:
        """Wait for every host's part of the gradients, and add them in host order."""
        if self._part.batch is None:
            return
        parts = [self.senders[route.number].collect(host) for host in self._layout.hosts]
        if any(host != self._rank for host in self._layout.hosts) and any(parts):
            watch.add("round_trip_s", time.perf_counter() - self._part.sent_at)
        for index, name in enumerate(route.crossing):
            pieces = [part[index] for part in parts if index in part]
            if pieces:
                self._part.gradients[name] = torch.stack(pieces).sum(0)

    @property
    def _others_first(self) -> list[int]:
        """The hosts from this rank on, so that not all ranks begin with the same one."""
        hosts = self._layout.hosts
        return sorted(hosts, key=lambda host: (host - self._rank - 1) % self._layout.world_size)
