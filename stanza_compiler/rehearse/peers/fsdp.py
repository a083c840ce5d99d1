"""fully_shard: parameters live in shards, are gathered before each use and their gradients scattered again."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from stanza_compiler.rehearse.peers.session import Session, run

UNIT_ELEMENTS = 100_000


class FullySharded:
    """Every rank trains on its part of the batch; modules of 100,000 parameters are units of their own."""

    def __init__(self, session: Session, *, reshard: bool) -> None:
        self._session = session
        mesh = init_device_mesh(session.device.type, (session.size,))
        for unit in units(session.whole):
            fully_shard(unit, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(session.whole, mesh=mesh, reshard_after_forward=reshard)
        self._updater = session.updater(session.whole)

    def step(self, items: Sequence[int]) -> None:
        # It averages over ranks: so many times a rank's share makes the average the sum.
        self._session.backward(items, self._session.whole, scale=self._session.size)
        self._session.update(self._updater)

    def state(self) -> dict[str, Tensor] | None:
        full = {
            name: parameter.full_tensor().detach() if isinstance(parameter, DTensor) else parameter.detach()
            for name, parameter in self._session.trained_parameters().items()
        }
        return None if self._session.rank else full


def units(module: nn.Module) -> Iterator[nn.Module]:
    """The smallest modules with so many parameters, innermost first; what others use too stays with the root."""
    users: dict[int, int] = {}
    for _, parameter in module.named_parameters(remove_duplicate=False):
        users[id(parameter)] = users.get(id(parameter), 0) + 1

    def find(inner: nn.Module) -> Iterator[nn.Module]:
        below = [unit for child in inner.children() for unit in find(child)]
        yield from below
        own = list(inner.parameters())
        is_large = sum(parameter.numel() for parameter in own) >= UNIT_ELEMENTS
        is_called = type(inner).forward is not nn.Module.forward and not isinstance(inner, nn.Sequential)
        if not below and is_large and is_called and all(users[id(parameter)] == 1 for parameter in own):
            yield inner

    for child in module.children():
        yield from find(child)


if __name__ == "__main__":
    reshard = sys.argv[1:2] != ["--keep"]
    run(partial(FullySharded, reshard=reshard), argv=sys.argv[1 if reshard else 2 :])
