"""Who needs which tensor, sizes looked through."""

from stanza_compiler.dataflow import size_segments, tensor_reads, tensors
from stanza_compiler.opgraph import Op, OpGraph
from tests.hand_graphs import value

# x -> a -> b, and b takes (the size of a) * 2.
GRAPH = OpGraph(
    "sizes",
    1,
    (value("x", 4), value("unused", 4)),
    (
        Op("a", "op", ("x",), value("a", 4)),
        Op("size", "size", ("a",), None, is_size=True),
        Op("twice", "mul", ("size",), None, is_size=True),
        Op("b", "op", ("x", "twice"), value("b", 4)),
    ),
    ("b", "x"),
    (),
)


def test_a_reader_of_a_size_reads_its_tensor() -> None:
    assert tensor_reads(GRAPH) == {"a": ("x",), "b": ("x", "a")}


def test_every_needed_tensor_is_listed_once() -> None:
    assert [(each.value.name, each.maker, each.readers, each.is_output) for each in tensors(GRAPH)] == [
        ("x", None, ("a", "b"), True),
        ("a", "a", ("b",), False),
        ("b", "b", (), True),
    ]


def test_a_tensor_crosses_when_fc_or_the_loss_needs_what_conv_made() -> None:
    x, a, b = tensors(GRAPH)
    assert [each.crosses(frozenset({"b"})) for each in (x, a, b)] == [True, True, False]
    assert [each.crosses(frozenset({"a", "b"})) for each in (x, a, b)] == [True, False, False]


def test_sizes_of_what_fc_makes_are_known_there_only() -> None:
    assert size_segments(GRAPH, frozenset({"b"})) == frozenset()
    assert size_segments(GRAPH, frozenset({"a", "b"})) == {"size", "twice"}
