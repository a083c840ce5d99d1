"""Values that a state_dict has beside tensors: kept in the program, in whole_model and in what a run exports."""

import importlib.util
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stanza_compiler.extra_state import same
from tests.against_model import assert_is_the_model, compiled
from tests.launch import launch

TAGGED = """
    class Tagged(nn.Linear):
        def get_extra_state(self):
            return {"tag": "v2", "features": [self.out_features, None], "scale": torch.tensor([1.0, float("nan")])}

        def set_extra_state(self, state):
            assert state["tag"] == "v2"
            assert state["features"] == [self.out_features, None]

    class Note(nn.Module):
        def __init__(self, text):
            super().__init__()
            self.text = text

        def forward(self, x):
            return x

        def get_extra_state(self):
            return self.text

        def set_extra_state(self, state):
            assert self.text == state

    class Net(nn.Module):
        _version = 4

        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(Note("first"), Tagged(6, 8), nn.BatchNorm1d(8), nn.ReLU())
            self.unused = Note(None)
            self.same = self.body[0]
            self.head = nn.ModuleDict({"a b": Tagged(8, 300), "c": nn.Sequential(nn.Linear(300, 3), Note("last"))})
            self.register_buffer("mean", torch.ones(6), persistent=False)

        def forward(self, x):
            return self.head["c"](self.head["a b"](self.body(self.same(x - self.mean))))

        def get_extra_state(self):
            return ("root", 1.5)

        def set_extra_state(self, state):
            assert state == ("root", 1.5)

        def _load_from_state_dict(self, state_dict, prefix, local_metadata, *rest):
            assert local_metadata["version"] == 4
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
    """


def test_the_whole_model_has_the_extra_state_of_containers_leaves_and_the_model_itself(tmp_path: Path) -> None:
    compiled(tmp_path, TAGGED)
    emitted = assert_is_the_model(tmp_path)
    state = emitted.state_dict()
    assert {key: value for key, value in state.items() if key.endswith("_extra_state") and "e.0" not in key} == {
        "_extra_state": ("root", 1.5),
        "body.0._extra_state": "first",
        "body.1._extra_state": state["body.1._extra_state"],
        "unused._extra_state": None,
        "same._extra_state": "first",
        "head.a b._extra_state": state["head.a b._extra_state"],
        "head.c.1._extra_state": "last",
    }
    assert state["head.a b._extra_state"]["features"] == [300, None]


def test_another_extra_state_than_the_compiled_one_is_refused(tmp_path: Path) -> None:
    compiled(tmp_path, TAGGED)
    emitted = assert_is_the_model(tmp_path)
    state = emitted.state_dict()
    state["body.0._extra_state"] = "another"
    with pytest.raises(ValueError, match=r"the extra state of body\.0 is another one than the program was compiled"):
        emitted.load_state_dict(state)


def test_what_a_run_exports_loads_into_the_model_strictly(tmp_path: Path) -> None:
    compiled(tmp_path, TAGGED)
    flags = ("--placement", "dedicated", "--conv-workers", 1, "--fc-workers", 1, "--steps", 1)
    for result in launch(tmp_path / "out", 2, *flags, "--export", tmp_path / "trained.pt"):
        assert result.status == 0, result.err
    trained = torch.load(tmp_path / "trained.pt", weights_only=True)
    model = _model(tmp_path / "model.py")
    assert list(trained) == list(model.state_dict())
    model.load_state_dict(trained, strict=True)
    assert not torch.equal(trained["head.c.0.weight"], _model(tmp_path / "model.py").state_dict()["head.c.0.weight"])


def _model(path: Path) -> nn.Module:
    spec = importlib.util.spec_from_file_location("tagged", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    model: nn.Module = module.build_model()
    return model


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (1, 1, True),
        (1, 1.0, False),
        (float("nan"), float("nan"), True),
        ({"a": [1, (2, None)]}, {"a": [1, (2, None)]}, True),
        ({"a": [1, (2, None)]}, {"a": [1, (3, None)]}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        ([1], [1, 2], False),
        (OrderedDict(a=1), {"a": 1}, False),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), True),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), False),
        (torch.ones(2), torch.ones(1), False),
        (torch.empty(0), torch.empty(0), True),
    ],
)
def test_values_are_compared_with_what_is_in_them(one: Any, other: Any, expected: Callable[..., bool]) -> None:
    assert same(one, other) is expected
