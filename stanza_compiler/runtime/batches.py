"""Items put together into batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import default_collate

from .program import Example, Program
from .seeds import seed_from
from .tree import map_leaves


@dataclass(frozen=True, slots=True)
class Batch:
    """`samples` items: the model's inputs by name, the targets in the user's own structure."""

    inputs: dict[str, Tensor]
    targets: Any
    samples: int


class Source(Protocol):
    """Where batches come from; `length` is None where items have no end."""

    @property
    def length(self) -> int | None: ...

    def load(self, items: Sequence[int]) -> Batch: ...


class Batches:
    """The batches of one rank's steps, each loaded when it is asked for or ahead of that.

    Either way the items of a step draw the same from torch's generator, which is not moved by it.
    """

    def __init__(self, source: Source, *, seed: int, rank: int) -> None:
        self._source, self._seed, self._rank = source, seed, rank
        self._ahead: dict[tuple[int, tuple[int, ...]], Batch | Exception] = {}

    def load(self, step: int, items: Sequence[int]) -> Batch:
        """The batch of these items, not none; what loading it ahead raised is raised here."""
        ready = self._ahead.pop((step, tuple(items)), None) or self._drawn(step, items)
        if isinstance(ready, Exception):
            raise ready
        return ready

    def load_ahead(self, step: int, items: Sequence[int]) -> None:
        """Load what a later `load` will ask for."""
        try:
            ready: Batch | Exception = self._drawn(step, items)
        except Exception as error:  # belongs to that step
            ready = error
        self._ahead[step, tuple(items)] = ready

    def _drawn(self, step: int, items: Sequence[int]) -> Batch:
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(seed_from(self._seed, self._rank, step, items[0]))
            return self._source.load(items)


def make_source(program: Program, dataset: Any, seed: int, device: torch.device) -> Source:
    """Batches of `dataset`, or of synthetic items when it is None."""
    return SyntheticItems(program, seed, device) if dataset is None else DatasetItems(program, dataset, device)


@dataclass(frozen=True, slots=True)
class DatasetItems:
    """Batches of a dataset that has a length and numbered items (inputs, target)."""

    program: Program
    dataset: Any
    device: torch.device

    @property
    def length(self) -> int | None:
        return len(self.dataset)

    def load(self, items: Sequence[int]) -> Batch:
        """The batch of these items.

        Raises ValueError when items need a collate_fn and there is none, TypeError when an item, collated, is no pair.
        """
        pair = (self.program.hooks.collate_fn or _collated)([self.dataset[item] for item in items])
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"a batch is a pair (inputs, target), collating gave {type(pair).__name__}")
        inputs, targets = pair
        if isinstance(inputs, Mapping):
            bound = self.program.bind_inputs(**inputs)
        elif isinstance(inputs, (tuple, list)):
            bound = self.program.bind_inputs(*inputs)
        else:
            bound = self.program.bind_inputs(inputs)
        return Batch(_moved(bound, self.device), _moved(targets, self.device), len(items))


@dataclass(frozen=True, slots=True)
class SyntheticItems:
    """Random items that look like the example; item k is a pure function of (seed, k)."""

    program: Program
    seed: int
    device: torch.device

    @property
    def length(self) -> int | None:
        return None

    def load(self, items: Sequence[int]) -> Batch:
        generators = [torch.Generator().manual_seed(seed_from(self.seed, item)) for item in items]
        shared = torch.Generator().manual_seed(seed_from(self.seed))

        def stack(example: Example) -> Tensor:
            if example.batch_axis is None:
                return _draw(example, shared)
            return torch.stack([_draw(example, generator) for generator in generators], example.batch_axis)

        inputs = {name: stack(example) for name, example in self.program.example_inputs.items()}
        targets = map_leaves(
            lambda leaf: stack(leaf) if isinstance(leaf, Example) else leaf, self.program.example_targets
        )
        return Batch(_moved(inputs, self.device), _moved(targets, self.device), len(items))


def _collated(items: list[Any]) -> Any:
    """What torch's DataLoader would make of them."""
    try:
        return default_collate(items)
    except (RuntimeError, TypeError, KeyError) as error:
        what = f"{len(items)} items of the dataset don't make a batch as they are ({' '.join(str(error).split())})"
        raise ValueError(f"{what}; define collate_fn(items)") from error


def _draw(example: Example, generator: torch.Generator) -> Tensor:
    dtype: torch.dtype = getattr(torch, example.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(example.shape, generator=generator, dtype=wide).to(dtype)
    low = 0 if example.low is None else example.low
    high = 1 if example.high is None else example.high
    return torch.randint(low, high + 1, example.shape, generator=generator, dtype=torch.int64).to(dtype)


def _moved(tree: Any, device: torch.device) -> Any:
    return map_leaves(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, tree)
