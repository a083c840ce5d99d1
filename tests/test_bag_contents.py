"""Inputs that only look as if they had a batch axis: the contents of embedding bags."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stanza_compiler.bag_contents import bag_contents
from stanza_compiler.call import describe_call


class Bags(nn.Module):
    """What `run` does with the table of a bag."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.bag, self.run = nn.EmbeddingBag(50, 4, mode="sum"), run

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.run(self.bag, *inputs)


def found(run: Any, *inputs: Tensor) -> tuple[str, ...]:
    module = Bags(run)
    return bag_contents(module, describe_call(module, inputs, {}, batch_axes={}, place="model.py"))


IDS, STARTS, WEIGHTS = torch.tensor([3, 1, 4, 1]), torch.tensor([0, 1, 2, 3]), torch.rand(4)


def test_ids_and_weights_are_contents_even_where_there_are_as_many_as_bags() -> None:
    names = found(lambda bag, *inputs: bag(inputs[0], inputs[1], inputs[2]), IDS, STARTS, WEIGHTS)
    assert names == ("inputs_0", "inputs_2")


def test_a_call_of_torchs_function_on_views_is_looked_at_too() -> None:
    def run(bag: nn.EmbeddingBag, dense: Tensor, starts: Tensor, ids: Tensor) -> Tensor:
        return dense + F.embedding_bag(input=ids.view(-1), weight=bag.weight, offsets=starts[:])

    assert found(run, torch.randn(4, 4), STARTS, IDS) == ("inputs_2",)


def test_bags_of_one_size_are_a_batch() -> None:
    assert found(lambda bag, first, second: bag(first) + bag(second), IDS.view(4, 1), STARTS.view(4, 1)) == ()


def test_ids_of_bags_that_the_model_itself_delimits_are_a_batch() -> None:
    def run(bag: nn.EmbeddingBag, ids: Tensor, kinds: Tensor) -> Tensor:
        return bag(ids, torch.arange(len(ids))) + bag.weight[kinds]

    assert found(run, IDS, STARTS) == ()


def test_a_model_that_refuses_its_own_example_is_left_to_the_passes() -> None:
    def refuse(*_: object) -> Tensor:
        raise ValueError("no")

    assert found(refuse, IDS, STARTS) == ()
