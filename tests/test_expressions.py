"""Forward bodies: what is written must parse, run and give what the graph gives."""

import ast
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from stanza_compiler.errors import EmitError
from stanza_compiler.expressions import Body, body


def written(function: Callable[..., Any], is_size: frozenset[str] = frozenset()) -> Body:
    graph = fx.Tracer().trace(function)
    for node in graph.nodes:
        node.meta["op"] = node.name
    return body(graph, access=lambda path: f"self.{path}", source=lambda node: "", is_size=is_size)


def run(text: Body, *args: Any) -> Any:
    lines = "\n".join(f"    {line.code}" for line in text.lines)
    source = "\n".join(text.imports) + f"\ndef forward({', '.join(text.parameters)}):\n{lines}\n"
    namespace: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
    exec(compile(ast.parse(source), "<test>", "exec"), namespace)
    return namespace["forward"](*args)


def everything(x: Tensor, y: Tensor) -> Any:
    a = -(x + y) * 2 - x / y // 3 % 5
    b = (a @ y.t()) ** -2.0
    c = x[:, 1:3, None][..., 0] + x[-1, [0, 1]]
    d = torch.where(~(x > y) & (x != 0) | (y <= 1), float("inf"), float("-inf"))
    e = F.softmax(torch.cat([a, b], dim=1), -1)
    f = torch.linalg.vector_norm(e, dim=1) + torch.fft.rfft(y).abs().sum()
    g = operator.iadd(a, 1)
    return {"it's": (c, [d, None]), 'q"': f.to(torch.float64), "g": g, "s": slice(None, 2), "n": 1 - x}


def test_operators_indexing_literals_and_containers_survive() -> None:
    def inputs() -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        return torch.rand(4, 4, generator=generator) + 0.5, torch.rand(4, 4, generator=generator) + 0.5

    expected, actual = everything(*inputs()), run(written(everything), *inputs())
    assert list(actual) == list(expected)
    torch.testing.assert_close(actual["it's"][0], expected["it's"][0])
    torch.testing.assert_close(actual["it's"][1][0], expected["it's"][1][0], equal_nan=True)
    assert actual["it's"][1][1] is None
    for key in ('q"', "g", "n"):
        torch.testing.assert_close(actual[key], expected[key], equal_nan=True)
    assert actual["s"] == slice(None, 2)


def test_a_value_takes_over_the_name_of_the_one_that_dies_in_making_it() -> None:
    text = written(lambda x: torch.tanh(torch.relu(x) * 2))
    assert [line.code for line in text.lines] == ["x = torch.relu(x)", "x = x * 2", "return torch.tanh(x)"]


def test_a_value_that_lives_on_keeps_its_name() -> None:
    text = written(lambda x: torch.relu(x) + x)
    assert [line.code for line in text.lines] == ["relu = torch.relu(x)", "return relu + x"]


def test_a_statement_for_its_effect_is_kept() -> None:
    def scaled(x: Tensor) -> Tensor:
        h = x + 1
        h.mul_(3)
        return h

    assert "x.mul_(3)" in [line.code for line in written(scaled).lines]
    assert torch.equal(run(written(scaled), torch.ones(2)), torch.full((2,), 6.0))


def test_an_assignment_into_a_tensor_stays_a_statement() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(operator.setitem, (x, (slice(None), 0), 7.0))
    graph.output(x)
    text = body(graph, access=str, source=lambda node: "", is_size=frozenset())
    assert [line.code for line in text.lines] == ["x[:, 0] = 7.0", "return x"]


def test_arithmetic_that_is_written_inline_keeps_its_order() -> None:
    def chunked(x: Tensor) -> Tensor:
        return x.view(((1 + x.size(0)) + x.size(1)) // 2 - -(2 - x.size(0)) % 3, -1)

    sizes = {"size", "size_1", "size_2", "add", "add_1", "floordiv", "sub", "neg", "mod", "sub_1"}
    text = written(chunked, frozenset(sizes))
    for shape in ((3, 4), (5, 8), (6, 7)):
        x = torch.zeros(*shape, 2520)  # that many divide by any number of rows up to 10
        rows = ((1 + shape[0]) + shape[1]) // 2 - -(2 - shape[0]) % 3
        assert run(text, x).shape[0] == rows, text


def test_a_negative_number_is_the_base_of_a_power() -> None:
    assert run(written(lambda x: (-2.0) ** x), torch.tensor([2.0])).item() == 4.0


def test_a_size_that_the_next_call_alone_uses_is_written_in_it() -> None:
    text = written(lambda x: x.view(x.size(0), -1), frozenset({"size"}))
    assert [line.code for line in text.lines] == ["return x.view(x.size(0), -1)"]


@pytest.mark.parametrize("name", ["self", "torch", "class", "print", "F", "x y", "1st", "\u00fcber", ""])
def test_argument_names_become_legal_identifiers_that_shadow_nothing(name: str) -> None:
    graph = fx.Graph()
    first, second = graph.placeholder("a"), graph.placeholder("b")
    first.target = second.target = name
    graph.output(graph.call_function(torch.sub, (first, second)))
    text = body(graph, access=str, source=lambda node: "", is_size=frozenset())
    assert len(set(text.parameters)) == 2
    assert all(parameter.isidentifier() for parameter in text.parameters)
    assert not {"self", "torch", "F", "print", "class"} & set(text.parameters)
    assert run(text, torch.tensor(5), torch.tensor(3)) == 2


def test_keywords_equal_to_a_functions_default_are_left_out() -> None:
    text = written(lambda x: F.log_softmax(x, dim=1))
    assert text.lines[-1].code == "return F.log_softmax(x, dim=1)"


def test_a_function_that_no_import_reaches_is_refused_by_name() -> None:
    def local(x: Tensor) -> Tensor:
        return x

    graph = fx.Graph()
    graph.output(graph.call_function(local, (graph.placeholder("x"),)))
    with pytest.raises(EmitError, match="can't be imported"):
        body(graph, access=str, source=lambda node: "model.py:3", is_size=frozenset())
