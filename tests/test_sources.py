"""Where a graph node comes from, as the user would say it."""

import site
from pathlib import Path

import pytest
import torch
import torchvision
from torch import fx, nn

from stanza_compiler.passes.trace import trace
from stanza_compiler.sources import node_source, short_path
from tests.source_of import source_of

HERE = Path(__file__)


class Inner(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.body = nn.Sequential(nn.Linear(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.body(x))


def line_of(text: str) -> int:
    """The number of the first line of this file that holds `text`."""
    return 1 + next(index for index, line in enumerate(HERE.read_text().splitlines()) if text in line)


def test_a_node_comes_from_the_innermost_line_that_is_not_torchs_own() -> None:
    traced = trace(source_of(Outer(), torch.ones(2, 2)))
    sources = {name: node_source(node, HERE.parent) for node, name in traced.names.items()}
    assert sources == {
        "x": "",
        "body.0": f"test_sources.py:{line_of('return self.inner(')}",
        "add": f"test_sources.py:{line_of('return x + 1')}",
    }


def test_a_node_without_a_recorded_stack_has_no_source() -> None:
    node = fx.Graph().placeholder("x")
    assert node_source(node, HERE.parent) == ""


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/home/me/net/model.py", "model.py"),
        ("/home/me/net/pack/deep.py", "pack/deep.py"),
        ("/home/me/other/file.py", "file.py"),
        ("/home/me/net/.venv/lib/python3.11/site-packages/timm/layers/mlp.py", "timm/layers/mlp.py"),
        ("/usr/lib/python3/dist-packages/torchvision/ops/misc.py", "torchvision/ops/misc.py"),
    ],
)
def test_a_path_says_nothing_of_this_machine(path: str, short: str) -> None:
    assert short_path(Path(path), Path("/home/me/net")) == short


def test_an_installed_model_is_named_from_its_package() -> None:
    file = Path(site.getsitepackages()[0]) / "torchvision" / "models" / "alexnet.py"
    assert short_path(file, HERE.parent) == "torchvision/models/alexnet.py"


def test_a_library_beside_torch_is_not_torch() -> None:
    alexnet = trace(source_of(torchvision.models.AlexNet(num_classes=3), torch.ones(2, 3, 64, 64)), verify=False)
    nodes = {name: node for node, name in alexnet.names.items()}
    assert node_source(nodes["features.0"], HERE.parent).startswith("torchvision/models/alexnet.py:")
