"""Which items a step takes and what batches they make."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stanza_compiler.runtime.batches import Batches, make_source
from stanza_compiler.runtime.program import Example, Hooks, Program
from stanza_compiler.runtime.sampler import Order, split_items

CPU = torch.device("cpu")


def test_an_epoch_ends_with_a_short_batch_and_the_next_starts_at_item_0() -> None:
    order = Order(length=7, global_batch_size=3, seed=0, shuffle=False)
    assert [order.items(step) for step in range(1, 5)] == [(0, 1, 2), (3, 4, 5), (6,), (0, 1, 2)]


def test_every_epoch_is_another_permutation_that_only_depends_on_the_seed() -> None:
    def epoch(number: int, seed: int, size: int) -> list[int]:
        order = Order(length=50, global_batch_size=size, seed=seed, shuffle=True)
        steps = range((number - 1) * order.steps_per_epoch + 1, number * order.steps_per_epoch + 1)
        return [item for step in steps for item in order.items(step)]

    assert sorted(epoch(1, 0, 8)) == list(range(50))
    assert epoch(1, 0, 8) == epoch(1, 0, 30)
    assert len({tuple(epoch(*case, 8)) for case in ((1, 0), (2, 0), (1, 1))}) == 3


def test_items_are_split_as_numpy_array_split_does() -> None:
    assert split_items((0, 1, 2, 3, 4, 5, 6), 3) == ((0, 1, 2), (3, 4), (5, 6))
    assert split_items((4, 5), 4) == ((4,), (5,), (), ())


def _program(**fields: Any) -> Program:
    def bind(image: Tensor, scale: Tensor | None = None) -> dict[str, Tensor]:
        return {"image": image} if scale is None else {"image": image, "scale": scale}

    return Program(Path(), stages={}, segments=(), build_model=dict, bind_inputs=bind, **fields)


def test_synthetic_items_depend_on_seed_and_number_alone() -> None:
    program = _program(
        example_inputs={
            "x": Example("float32", (2, 3), batch_axis=1),
            "ids": Example("int64", (4,), low=5, high=7),
            "mask": Example("bool", (2, 2), batch_axis=None),
        },
        example_targets={"label": Example("int32", (), low=0, high=9), "pair": [Example("complex64", (1,))]},
    )
    whole = make_source(program, None, 1, CPU).load(range(4, 10))
    some = make_source(program, None, 1, CPU).load([8, 6])
    assert whole.inputs["x"].shape == (2, 6, 3)
    assert torch.equal(some.inputs["x"], whole.inputs["x"][:, [4, 2]])
    assert torch.equal(some.inputs["ids"], whole.inputs["ids"][[4, 2]])
    assert torch.equal(some.inputs["mask"], whole.inputs["mask"])
    assert torch.equal(some.targets["label"], whole.targets["label"][[4, 2]])
    assert some.targets["pair"][0].dtype == torch.complex64
    assert some.targets["label"].dtype == torch.int32
    many = make_source(program, None, 1, CPU).load(range(200)).inputs["ids"]
    assert sorted(many.unique().tolist()) == [5, 6, 7]
    assert not torch.equal(make_source(program, None, 2, CPU).load([8]).inputs["x"], some.inputs["x"][:, :1])


def test_inputs_of_items_are_bound_as_the_model_is_called() -> None:
    x, scale = torch.ones(3), torch.zeros(1)
    for item in ((x, 1), ((x,), 1), ({"image": x}, 1)):
        batch = make_source(_program(), [item, item], 0, CPU).load([0, 1])
        assert batch.inputs["image"].shape == (2, 3)
        assert batch.targets.tolist() == [1, 1]
    assert make_source(_program(), [((x, scale), 1)], 0, CPU).load([0]).inputs["scale"].shape == (1, 1)


def test_collate_fn_puts_items_together() -> None:
    hooks = Hooks(collate_fn=lambda items: (torch.cat([x for x, _ in items]), {"n": len(items)}))
    batch = make_source(_program(hooks=hooks), [(torch.ones(2), 0), (torch.ones(3), 0)], 0, CPU).load([0, 1])
    assert batch.inputs["image"].shape == (5,)
    assert batch.targets == {"n": 2}


def test_items_that_make_no_batch_as_they_are_need_a_collate_fn() -> None:
    for items in ([(torch.ones(2), 0), (torch.ones(3), 0)], [(torch.ones(2), object())] * 2):
        with pytest.raises(ValueError, match=r"^2 items of the dataset don't .* \(.*\); define collate_fn\(items\)$"):
            make_source(_program(), items, 0, CPU).load([0, 1])


class _Noisy:
    """Items whose values are drawn when they are asked for; item 9 is broken."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        if item == 9:
            raise OSError("item 9 is broken")
        return torch.rand(3), item


def _noisy(rank: int = 0) -> Batches:
    return Batches(make_source(_program(), _Noisy(), 0, CPU), seed=0, rank=rank)


def test_a_batch_loaded_ahead_is_the_one_that_would_have_been_loaded_then() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    ahead, behind = _noisy(), _noisy()
    ahead.load_ahead(2, [3, 4])
    first = ahead.load(1, [1, 2]).inputs["image"]
    second = ahead.load(2, [3, 4]).inputs["image"]
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(behind.load(1, [1, 2]).inputs["image"], first)
    assert torch.equal(behind.load(2, [3, 4]).inputs["image"], second)
    assert not torch.equal(behind.load(3, [3, 4]).inputs["image"], second)
    assert not torch.equal(_noisy(rank=1).load(2, [3, 4]).inputs["image"], second)


def test_what_loading_ahead_raises_belongs_to_the_step_that_needs_it() -> None:
    batches = _noisy()
    batches.load_ahead(2, [8, 9])
    assert batches.load(1, [1, 2]).samples == 2
    with pytest.raises(OSError, match="item 9 is broken"):
        batches.load(2, [8, 9])
