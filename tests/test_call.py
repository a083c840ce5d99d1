"""How a call's tensors are named, laid out and resized."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from stanza_compiler.call import Call, Constant, describe_call
from stanza_compiler.errors import LoadError


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Positional(nn.Module):
    def forward(self, x: Any, scale: float = 2.0, mask: Any = None) -> Any:
        return x


class Variadic(nn.Module):
    def forward(self, first: Any, *rest: Any, flag: bool = False, only: Any = None, **extra: Any) -> Any:
        return first


def call_of(module: nn.Module, *args: Any, axes: dict[str, int | None] | None = None, **kwargs: Any) -> Call:
    return describe_call(module, args, kwargs, batch_axes=axes or {}, place="model.py")


def named(call: Call) -> dict[str, str]:
    return {leaf.name: leaf.expression for leaf in call.leaves}


def batch(*sizes: int) -> torch.Tensor:
    return torch.arange(torch.Size(sizes).numel(), dtype=torch.float32).reshape(sizes)


def test_nested_containers_are_reached_by_their_own_expressions() -> None:
    nested = {"image": {"pixels": batch(4, 2)}, "pairs": [(batch(4), batch(4, 1))], "both": Pair(batch(4), batch(4))}
    assert named(call_of(Positional(), nested)) == {
        "x_image_pixels": 'x["image"]["pixels"]',
        "x_pairs_0_0": 'x["pairs"][0][0]',
        "x_pairs_0_1": 'x["pairs"][0][1]',
        "x_both_left": 'x["both"].left',
        "x_both_right": 'x["both"].right',
    }


def test_variadic_and_keyword_arguments_keep_the_names_that_forward_gives_them() -> None:
    call = call_of(Variadic(), batch(4), batch(4, 1), batch(4, 2), only=batch(4), more=batch(4), flag=True)
    assert named(call) == {
        "first": "first",
        "rest_0": "rest[0]",
        "rest_1": "rest[1]",
        "only": "only",
        "extra_more": 'extra["more"]',
    }
    assert call.constants == (Constant("flag", True),)


def test_a_positional_argument_may_be_passed_by_keyword() -> None:
    assert named(call_of(Positional(), mask=batch(4, 3), x=batch(4, 2))) == {"mask": "mask", "x": "x"}


def test_what_is_no_tensor_is_a_constant_also_where_it_is_a_default() -> None:
    call = call_of(Positional(), {"pixels": batch(4), "size": 7})
    assert call.constants == (Constant('x["size"]', 7), Constant("scale", 2.0), Constant("mask", None))


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("class", "x_class"),
        ("", "x"),
        ("'] + evil() + ['", "x_evil"),
        ("\u00e9t\u00e9", "x_t"),
        ("two words\n", "x_two_words_n"),
        (3, "x_3"),
    ],
)
def test_a_hostile_key_gives_a_plain_identifier_and_an_expression_that_reaches_it(key: Any, name: str) -> None:
    (leaf,) = call_of(Positional(), {key: batch(4)}).leaves
    assert leaf.name == name
    assert eval(leaf.expression, {"x": {key: "found"}}) == "found"


def test_names_that_collide_are_numbered_until_they_differ() -> None:
    value = {"a": [batch(4)], "a_0": batch(4), "a-0": batch(4), "a_0_2": batch(4)}
    names = [leaf.name for leaf in call_of(Positional(), value).leaves]
    assert names == ["x_a_0", "x_a_0_2", "x_a_0_3", "x_a_0_2_2"]


def test_a_name_that_generated_code_needs_itself_is_prefixed() -> None:
    class Shadowing(nn.Module):
        def forward(self, torch: Any, nn: Any, _: Any) -> Any:
            return torch

    assert [leaf.name for leaf in call_of(Shadowing(), batch(2), batch(2), batch(2)).leaves] == [
        "input_torch",
        "input_nn",
        "input",
    ]


def test_the_batch_axis_is_axis_0_of_tensors_with_the_most_common_leading_size() -> None:
    call = call_of(Variadic(), batch(4, 9), batch(4, 1), batch(9, 4), torch.tensor(3.0))
    assert [leaf.batch_axis for leaf in call.leaves] == [0, 0, None, None]
    assert call.batch_size == 4


def test_an_override_moves_or_removes_a_batch_axis_and_takes_no_part_in_the_vote() -> None:
    axes = {"first": 1, "rest_0": None}
    call = call_of(Variadic(), batch(7, 3), batch(7, 3), batch(3, 2), axes=axes)
    assert [leaf.batch_axis for leaf in call.leaves] == [1, None, 0]
    assert call.batch_size == 3


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"y": 0}, "model.py: no input is called y; the inputs are x"),
        ({"x": 2}, "model.py: input x has 2 axes, none is axis 2; fix its batch axis"),
        ({"x": -1}, "model.py: input x has 2 axes, none is axis -1; fix its batch axis"),
    ],
)
def test_an_override_that_fits_no_input_is_refused(axes: dict[str, int | None], message: str) -> None:
    with pytest.raises(LoadError) as caught:
        call_of(Positional(), batch(4, 2), axes=axes)
    assert str(caught.value) == message


def test_arguments_that_do_not_fit_forward_are_refused() -> None:
    with pytest.raises(LoadError, match=r"^model.py: the example inputs don't fit forward\(x"):
        call_of(Positional(), batch(4), nonsense=1)


def test_a_call_without_a_tensor_is_refused() -> None:
    with pytest.raises(LoadError, match="hold no tensor"):
        call_of(Positional(), 3)


def test_arguments_repeat_or_cut_the_items_of_every_batched_tensor() -> None:
    call = call_of(Positional(), {"ids": torch.tensor([5, 6, 7]), "table": batch(2, 3)}, axes={"x_table": None})
    for size, expected in ((2, [5, 6]), (3, [5, 6, 7]), (5, [5, 6, 7, 5, 6])):
        (value,), kwargs = call.arguments(size)
        assert value["ids"].tolist() == expected
        assert value["ids"].dtype == torch.int64
        assert torch.equal(value["table"], batch(2, 3))
        assert kwargs == {}


def test_arguments_are_fresh_and_keep_their_containers() -> None:
    pair = Pair(batch(2, 1), batch(2, 2))
    (value,), _ = call_of(Positional(), pair).arguments()
    assert type(value) is Pair
    value.left.add_(1)
    assert torch.equal(pair.left, batch(2, 1))


def test_parts_along_any_batch_axis_join_to_the_whole() -> None:
    call = call_of(Positional(), batch(2, 3), axes={"x": 1})
    parts = [call.part(5, start, stop)[0][0] for start, stop in ((0, 1), (1, 5))]
    assert [part.shape for part in parts] == [(2, 1), (2, 4)]
    assert torch.equal(torch.cat(parts, 1), call.arguments(5)[0][0])
