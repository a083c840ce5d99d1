"""Memory that is used again in the next step: to touch fresh memory can cost more than to compute what goes there."""

from collections.abc import Hashable

import torch
from torch import Tensor


class Rooms:
    """One piece of memory by key, lent again once nobody holds the tensor that it was lent as, nor a view of it."""

    def __init__(self) -> None:
        self._memory: dict[Hashable, torch.UntypedStorage] = {}

    def lend(self, key: Hashable, like: Tensor) -> Tensor:
        """A tensor of the form of `like` (dtype, device, sizes, strides where dense), its values undefined."""
        memory = self._memory.get(key)
        form = torch.empty_like(like, device="meta")
        if memory is None or not _is_free(memory) or memory.nbytes() != form.nbytes or memory.device != like.device:
            room = torch.empty_like(like, requires_grad=False)
            self._memory[key] = room.untyped_storage()
            return room
        empty = torch.empty(0, dtype=like.dtype, device=like.device)
        return empty.set_(memory, 0, form.shape, form.stride())


def _is_free(memory: torch.UntypedStorage) -> bool:
    return torch._C._storage_Use_Count(memory._cdata) == 1
