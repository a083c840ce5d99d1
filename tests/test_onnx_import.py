"""The parts of the importer that need no file: names, scopes, where a batch stands."""

import onnx
import pytest
from onnx import helper

from stanza_compiler.onnx_import.names import Paths, argument, scope
from stanza_compiler.onnx_import.rebatch import Rebatching


@pytest.mark.parametrize(
    ("shape", "size", "target", "axis"),
    [
        ((None, 256, 6, 6), 1, (1, 9216), 0),  # flatten
        ((7, None, 96), 1, (7, 1, 3, 32), 1),  # attention with the sequence first
        ((7, None, 32), 1, (7, 4, 8), 1),  # its heads join the batch
        ((None, 7, 8), 4, (1, 4, 7, 8), 0),  # and leave it
        ((7, None, 4, 8), 1, (7, 32), 0),  # features never do
        ((None, 32), 7, (7, 1, 32), 1),
        ((None, 3, 4), 5, (5, 12), 0),  # stored for five
        ((2, None), 3, (2, 4), None),
    ],
)
def test_the_batch_of_a_stored_shape_is_found(
    shape: tuple[int | None, ...], size: int, target: tuple[int, ...], axis: int | None
) -> None:
    stored = 5 if 5 in target else 1 if axis is not None else 3
    assert Rebatching(stored).axis(shape, size, target) == axis


def test_every_open_choice_is_tried_once_the_last_first() -> None:
    attempt: Rebatching | None = Rebatching(1)
    found = []
    while attempt is not None:
        found.append([attempt.axis((None, 4), 1, (1, 4)), attempt.axis((7, None), 1, (7, 4))])
        attempt = attempt.next()
    assert found == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_no_two_tensors_or_layers_share_a_path() -> None:
    paths = Paths()
    assert [paths.tensor("a.b"), paths.tensor("a.b"), paths.tensor("a"), paths.layer("a.b"), paths.layer("a.c")] == [
        "a.b", "a.b_", "a_", "a.b__", "a.c"
    ]  # fmt: skip
    assert paths.tensor("a.c") == "a.c_"
    assert paths.holds("a.c")
    assert not paths.holds("a.d")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("x", "x"), ("input.1", "input_1"), ("1", "input_1"), ("class", "input_class"), ("é", "input")],
)
def test_argument_names_are_identifiers(name: str, expected: str) -> None:
    assert argument(name, []) == expected
    assert argument(name, [expected]) == f"{expected}_2"


@pytest.mark.parametrize(
    ("name", "scopes", "path"),
    [
        ("/features/features.0/Conv", "", "features.0"),
        ("/layer1/layer1.0/conv1/Conv", "", "layer1.0.conv1"),
        ("/encoder/layers.1/attention/MatMul", "", "encoder.layers.1.attention"),
        ("node_conv2d", "['', 'features', 'features.0', 'conv2d']", "features.0"),
        ("node_add", "['', 'add']", ""),
        ("node_add", "[nonsense", ""),
        ("Conv_3", "", ""),
    ],
)
def test_the_module_of_a_node_is_where_exporters_leave_it(name: str, scopes: str, path: str) -> None:
    node: onnx.NodeProto = helper.make_node("Conv", ["x", "w"], ["y"], name=name)
    if scopes:
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    assert scope(node) == path
