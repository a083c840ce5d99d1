"""Which axis the batch is on, found by running the model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stanza_compiler.batch_axes import TRIES, settle_batch_axes
from stanza_compiler.call import Call, describe_call


class Tally:
    """Stands outside of what the compiler puts back after a run: no container of torch's or Python's."""

    value = 0


class Counted(nn.Module):
    """A forward that counts its calls; `run` is what it does."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run, self.calls = run, Tally()

    def forward(self, *inputs: Any) -> Any:
        self.calls.value += 1
        return self.run(*inputs)


def settled(
    module: nn.Module, *args: Any, given: dict[str, int | None] | None = None
) -> tuple[list[int | None], str, Call]:
    usual = describe_call(module, args, {}, batch_axes=given or {}, place="model.py")
    call, note = settle_batch_axes(module, usual, (given or {}).keys())
    return [leaf.batch_axis for leaf in call.leaves], note, call


class Recurrent(nn.Module):
    """An LSTM whose states come in as (layers times directions, batch, hidden)."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 6, num_layers=layers, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> Any:
        return self.lstm(x, state)


@pytest.mark.parametrize(("layers", "batch"), [(2, 3), (2, 4), (1, 2), (1, 5)])
def test_states_of_an_lstm_have_their_batch_on_axis_1(layers: int, batch: int) -> None:
    states = torch.randn(2 * layers, batch, 6), torch.randn(2 * layers, batch, 6)
    axes, note, call = settled(Recurrent(layers), torch.randn(batch, 7, 5), states)
    assert axes == [0, 1, 1]
    assert call.batch_size == batch
    assert note.startswith("batch axes x=0, state_0=1, state_1=1: ")


def test_states_of_two_lstms_are_found_too() -> None:
    one, two = Recurrent(2), Recurrent(2)

    def run(x: Tensor, *states: Tensor) -> Tensor:
        first, second = one(x, states[:2])[0], two(x, states[2:])[0]
        return torch.cat([first, second], 2)

    states = [torch.randn(4, 3, 6) for _ in range(4)]
    assert settled(Counted(run), torch.randn(3, 7, 5), *states)[0] == [0, 1, 1, 1, 1]


def test_what_the_usual_axes_do_is_left_alone() -> None:
    module = Counted(lambda x, y: x + y)
    axes, note, _ = settled(module, torch.ones(4, 4), torch.ones(4, 4))
    assert (axes, note) == ([0, 0], "")
    assert module.calls.value == 2


def test_one_input_is_not_even_run() -> None:
    module = Counted(lambda x: x.reshape(4, -1))
    assert settled(module, torch.ones(4, 3))[:2] == ([0], "")
    assert module.calls.value == 0


def test_a_mask_that_is_as_long_as_the_batch_is_large_has_no_batch_axis() -> None:
    def attend(x: Tensor, mask: Tensor) -> Tensor:
        return (x @ x.mT).masked_fill(mask, 0.0) @ x

    axes, note, _ = settled(Counted(attend), torch.randn(4, 4, 8), torch.ones(4, 4, dtype=torch.bool).triu(1))
    assert axes == [0, None]
    assert "inputs_1=none" in note


def test_a_table_of_the_batchs_length_is_no_batch() -> None:
    axes, _, _ = settled(Counted(lambda ids, table: table[ids]), torch.tensor([0, 3, 2, 1]), torch.randn(4, 9))
    assert axes == [0, None]


def test_the_users_own_axes_stay() -> None:
    states = torch.randn(4, 3, 6), torch.randn(4, 3, 6)
    axes, note, _ = settled(Recurrent(2), torch.randn(3, 7, 5), states, given={"state_0": 1})
    assert axes == [0, 1, 1]
    assert note
    axes, note, _ = settled(Recurrent(2), torch.randn(3, 7, 5), states, given={"x": None})
    assert axes == [None, 0, 0]
    assert note == ""


def test_ragged_inputs_have_no_batch_axis_but_their_offsets_have() -> None:
    bag = nn.EmbeddingBag(20, 3)
    indices, offsets = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9, 7]), torch.tensor([0, 2, 2, 6])
    axes, note, _ = settled(Counted(lambda x, i, o: bag(i, o) + x), torch.ones(4, 3), indices, offsets)
    assert axes == [0, None, 0]
    assert note == ""


def test_where_nothing_works_the_usual_axes_stay_after_a_bounded_number_of_tries() -> None:
    def baked(*inputs: Tensor) -> Tensor:
        if any(value.shape != (4, 4, 4) for value in inputs):
            raise ValueError
        return inputs[0]

    module = Counted(baked)
    axes, note, _ = settled(module, *(torch.ones(4, 4, 4) for _ in range(9)))
    assert axes == [0] * 9
    assert note == ""
    assert module.calls.value <= 2 * (TRIES + 1)


def test_the_model_and_the_random_numbers_are_as_before() -> None:
    class Drawing(Recurrent):
        def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> Any:
            self.norm(x.flatten(0, 1))
            return super().forward(x + torch.randn_like(x), state)

    module = Drawing(2)
    module.norm = nn.BatchNorm1d(5)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    random = torch.get_rng_state()
    settled(module, torch.ones(3, 7, 5), (torch.ones(4, 3, 6), torch.ones(4, 3, 6)))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
