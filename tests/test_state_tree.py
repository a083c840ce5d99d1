"""Which stage holds which module, and the code that builds and reaches it."""

import pytest
import torch
from torch import fx, nn

from stanza_compiler.passes.split import Segment, Stages
from stanza_compiler.plan import Role
from stanza_compiler.state_lines import state_lines
from stanza_compiler.state_tree import StateTree, is_attribute, state_tree


def tree_of(root: nn.Module, conv: list[str], fc: list[str]) -> StateTree:
    """The tree for a CONV graph and an FC graph that mention these modules and tensors."""

    def graph(targets: list[str]) -> fx.Graph:
        graph = fx.Graph()
        value = graph.placeholder("x")
        for target in targets:
            *parents, last = target.split(".")
            owner = root.get_submodule(".".join(parents))
            value = graph.call_module(target, (value,)) if last in owner._modules else graph.get_attr(target)
        graph.output(value)
        return graph

    roles: list[tuple[Role, list[str]]] = [("conv", conv), ("fc", fc)]
    return state_tree(root, Stages(tuple(Segment(role, graph(targets), (), ()) for role, targets in roles)))


def built(tree: StateTree, role: Role) -> nn.Module:
    """What the stage's __init__ lines build."""
    module = nn.Module()
    exec("\n".join(state_lines(tree, role)), {"self": module, "nn": nn, "torch": torch})
    return module


def net() -> nn.Module:
    root = nn.Module()
    root.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Linear(4, 5))
    root.head = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 7))
    root.scale = nn.Parameter(torch.ones(7))
    return root


def test_each_stage_builds_its_own_part_under_the_original_names() -> None:
    tree = tree_of(net(), ["features.0", "features.1"], ["features.2", "head.0", "head.1", "scale"])
    assert list(built(tree, "conv").state_dict()) == ["features.0.weight", "features.0.bias"]
    assert list(built(tree, "fc").state_dict()) == [
        "scale", "features.2.weight", "features.2.bias", "head.0.weight", "head.0.bias", "head.1.weight", "head.1.bias",
    ]  # fmt: skip


def test_a_sequential_is_indexed_where_one_stage_holds_it_whole_and_keyed_where_two_share_it() -> None:
    tree = tree_of(net(), ["features.0", "features.1"], ["features.2", "head.0", "head.1"])
    assert tree.access("head.1") == "self.head[1]"
    assert tree.access("features.2") == 'self.features["2"]'


def test_what_nobody_uses_goes_where_its_neighbour_is() -> None:
    root = net()
    root.unused = nn.Linear(2, 2)
    tree = tree_of(root, ["features.0", "features.1", "features.2"], ["head.0", "head.1", "scale"])
    assert tree.leaves["unused"] == frozenset({"fc"})


def test_tied_and_aliased_state_stays_one() -> None:
    root = net()
    root.head[1] = nn.Linear(6, 5)
    root.again = root.features[0]
    root.tied = nn.Linear(6, 5)
    root.tied.weight = root.head[1].weight
    tree = tree_of(root, ["features.0", "features.1", "features.2"], ["head.0", "head.1", "tied"])
    fc, conv = built(tree, "fc"), built(tree, "conv")
    assert fc.get_parameter("tied.weight") is fc.get_parameter("head.1.weight")
    assert conv.get_submodule("again") is conv.get_submodule("features.0")


def test_a_module_that_holds_nothing_but_a_tied_tensor_is_built() -> None:
    class OwnEmbedding(nn.Embedding):
        """No module of torch's own, therefore a container of its weight."""

    root = net()
    root.shared = OwnEmbedding(9, 5)
    root.body = nn.ModuleList([nn.Module()])
    root.body[0].embed = OwnEmbedding(9, 5)
    root.body[0].embed.weight = root.shared.weight
    features = ["features.0", "features.1", "features.2"]
    fc = built(tree_of(root, features, ["shared.weight", "body.0.embed.weight", "head.0", "head.1", "scale"]), "fc")
    assert fc.get_parameter("body.0.embed.weight") is fc.get_parameter("shared.weight")


def test_a_layer_that_is_read_but_never_called_may_stand_on_both_sides() -> None:
    tree = tree_of(net(), ["features.0", "features.1", "head.1.weight"], ["features.2", "head.0", "head.1.bias"])
    assert "head.1.weight" in built(tree, "conv").state_dict()
    assert "head.1.bias" in built(tree, "fc").state_dict()
    assert {"head.1.weight", "head.1.bias"} <= set(tree.tensors)


def test_a_layer_that_both_sides_call_is_built_by_both() -> None:
    tree = tree_of(net(), ["features.0", "features.1"], ["features.0", "features.2", "head.0", "head.1", "scale"])
    assert isinstance(built(tree, "conv").get_submodule("features.0"), nn.Conv2d)
    assert isinstance(built(tree, "fc").get_submodule("features.0"), nn.Conv2d)
    assert [item.names for item in tree.shared] == [("features.0.weight",), ("features.0.bias",)]


def test_of_a_layer_that_the_other_side_calls_a_side_holds_the_tensors_that_it_reads() -> None:
    tree = tree_of(net(), ["features.0", "features.1", "features.2"], ["features.2.weight", "head.0", "head.1"])
    fc = built(tree, "fc")
    assert type(fc.get_submodule("features.2")) is nn.Module
    assert [name for name, _ in fc.named_parameters() if "features" in name] == ["features.2.weight"]
    assert isinstance(built(tree, "conv").get_submodule("features.2"), nn.Linear)
    assert [item.held for item in tree.shared] == [{"conv": ("features.2.weight",), "fc": ("features.2.weight",)}]


def test_a_tensor_tied_across_the_sides_has_on_each_the_names_that_it_uses() -> None:
    root = net()
    root.first = nn.Linear(6, 7)
    root.unused = nn.Linear(6, 7)
    root.again = nn.Linear(6, 7)
    for name in ("first", "unused", "again"):
        root.get_submodule(name).weight = root.head[1].weight
    tree = tree_of(root, ["features.0", "features.1", "first"], ["features.2", "head.0", "head.1", "again", "scale"])
    (shared,) = tree.shared
    assert shared.names == ("head.1.weight", "first.weight", "unused.weight", "again.weight")
    assert shared.held == {"fc": ("head.1.weight", "again.weight", "unused.weight"), "conv": ("first.weight",)}
    conv, fc = built(tree, "conv"), built(tree, "fc")
    assert {name for name, _ in conv.named_parameters()} == {
        "features.0.weight", "features.0.bias", "first.weight", "first.bias", "unused.bias",
    }  # fmt: skip
    assert all(fc.get_parameter(name) is fc.get_parameter("head.1.weight") for name in shared.held["fc"])


def test_what_nobody_uses_stands_on_one_side_even_behind_what_both_hold() -> None:
    root = net()
    root.act = nn.ReLU()
    root.unused = nn.Linear(2, 2)
    tree = tree_of(root, ["features.0", "features.1", "act"], ["features.2", "head.0", "head.1", "act", "scale"])
    assert tree.leaves["act"] == {"conv", "fc"}
    assert tree.leaves["unused"] == {"fc"}


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("layer", True),
        ("\u00e9t\u00e9", True),
        ("__layer__", True),
        ("__layer", False),  # Python renames it within a class
        ("\ufb01", False),  # Python reads it as fi
        ("class", False),
        ("forward", False),
        ("run", False),
        ("segment_12", False),
        ("a b", False),
        ("0", False),
    ],
)
def test_a_name_is_written_as_an_attribute_where_python_reaches_the_child_by_it(name: str, written: bool) -> None:
    class Stage(nn.Module):
        def run(self) -> None: ...
        def segment_12(self) -> None: ...

    assert is_attribute(name) is written
    if written:
        stage = Stage()
        exec(f"class Reader:\n    def read(other, self):\n        return self.{name}", reader := {})
        stage.add_module(name, child := nn.Tanh())
        assert reader["Reader"]().read(stage) is child
