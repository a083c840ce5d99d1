"""DistributedDataParallel on the whole model, with one of torch's stock communication hooks or none."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from stanza_compiler.rehearse.peers.session import Session, run

HOOKS = ("none", "fp16", "bf16", "powersgd")


class DataParallel:
    """Every rank trains the whole model on its part; the gradients are averaged while the backward goes on."""

    def __init__(self, session: Session, hook: str) -> None:
        self._session = session
        self._replica: Any = session.runtime("replicas").replicate(session.whole, session.trained, dist.group.WORLD)
        self._updater = session.updater(session.whole)
        match hook:
            case "fp16":
                self._replica.register_comm_hook(None, default_hooks.fp16_compress_hook)
            case "bf16":
                self._replica.register_comm_hook(None, default_hooks.bf16_compress_hook)
            case "powersgd":
                state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
                self._replica.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def step(self, items: Sequence[int]) -> None:
        # It averages over ranks: so many times a rank's share makes the average the sum.
        self._session.backward(items, self._replica, scale=self._session.size)
        self._session.update(self._updater)

    def state(self) -> dict[str, Tensor] | None:
        parameters = self._session.trained_parameters()
        return {name: parameter.detach() for name, parameter in parameters.items()} if not self._session.rank else None


if __name__ == "__main__":
    flag, value, *others = sys.argv[1:] if sys.argv[1:2] == ["--hook"] else ("", "none", *sys.argv[1:])
    run(partial(DataParallel, hook=value), argv=others)
