"""What a host holds between the segments of a step."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch import Tensor

from .plan_file import Crossing
from .shares import Shared, share_out
from .wires import Wire, describe_wires


class Held:
    """Tensors by name and rank, which FC segments took or gave, and the gradients that come back of the given ones."""

    def __init__(self, kinds: Mapping[str, Crossing]) -> None:
        self._kinds = kinds
        self._parts: dict[str, dict[int, Tensor]] = {}
        self._given: dict[str, list[Shared]] = {}
        self._gradients: dict[str, dict[int, Tensor]] = {}

    def keep(self, name: str, parts: Mapping[int, Tensor]) -> None:
        """Hold what the ranks brought."""
        self._parts[name] = dict(parts)

    def give(self, name: str, tensor: Tensor, samples: Mapping[int, int]) -> None:
        """Hold what a segment gave when it ran on the `samples` of these ranks."""
        if name in self._kinds:  # else no segment takes it
            shared = share_out(tensor, self._kinds[name], samples, name)
            self._given.setdefault(name, []).append(shared)
            self._parts.setdefault(name, {}).update(shared.pieces(tensor))

    def given(self) -> Iterator[Tensor]:
        """Everything that segments gave, as they gave it."""
        return (shared.tensor for several in self._given.values() for shared in several)

    def values(self, names: Iterable[str], rank: int) -> list[Tensor]:
        """The parts of `rank`."""
        return [self._parts[name][rank] for name in names]

    def describe(self, names: Sequence[str]) -> tuple[Wire, ...]:
        """The form of any rank's parts."""
        return describe_wires({name: next(iter(self._parts[name].values())) for name in names}, (), self._kinds)

    def add_gradient(self, name: str, rank: int, gradient: Tensor) -> None:
        """Take one of the gradients of the part of `rank`."""
        gradients = self._gradients.setdefault(name, {})
        gradients[rank] = gradients[rank] + gradient if rank in gradients else gradient

    def roots(self, names: Iterable[str]) -> list[tuple[Tensor, Tensor]]:
        """What a segment gave, each with its gradient put together, where there is one."""
        roots = []
        for name in names:
            for shared in self._given.get(name, ()):
                gradient = shared.gradient(self._gradients.get(name, {}))
                if gradient is not None:
                    roots.append((shared.tensor, gradient))
        return roots

    def clear(self) -> None:
        """Forget the step."""
        self._parts, self._given, self._gradients = {}, {}, {}
