"""What of real models hosts can share, and whether loss and optimiser let them."""

from pathlib import Path

import pytest

from stanza_compiler.compiler import compile_source
from stanza_compiler.opgraph import Rules, Shardable
from stanza_compiler.options import Options

MODEL = """
import torch
import torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.fc1 = nn.Linear(144, 30)
        self.drop = nn.Dropout(0.2)
        self.norm = nn.BatchNorm1d(30)
        self.fc2 = nn.Linear(30, 20)
        self.fc3 = nn.Linear(20, 10)

    def forward(self, x):
        x = torch.flatten(self.conv(x), 1)
        x = self.norm(self.drop(F.relu(self.fc1(x))))
        return self.fc3(torch.tanh(self.fc2(x)))

def build_model():
    return Net()

def example_inputs():
    return (torch.randn(4, 3, 8, 8),)

def example_targets():
    return torch.arange(4)

def loss_fn(outputs, targets):
    return F.cross_entropy(outputs, targets)
"""


def found(folder: Path, *changes: tuple[str, str]) -> Shardable:
    text = MODEL
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "model.py").write_text(text)
    rules: list[Rules] = []
    compile_source(
        Options(source=str(folder / "model.py"), dry_run=True, verify=False),
        on_pass=lambda name, result, seconds: rules.append(result) if isinstance(result, Rules) else None,
    )
    return rules[0].shardable


def test_linears_and_pointwise_calls_are_told_from_what_mixes_columns(tmp_path: Path) -> None:
    shardable = found(tmp_path)
    assert shardable.linears == {"fc1", "fc2", "fc3"}
    assert shardable.pointwise == {"relu", "drop", "tanh"}
    assert shardable.stateless == {"flatten"}
    assert (shardable.why_not, shardable.takes_all) == ("", "")


def test_a_layer_used_twice_or_kept_as_another_class_is_not_shared(tmp_path: Path) -> None:
    shardable = found(
        tmp_path,
        ("torch.tanh(self.fc2(x))", "torch.tanh(self.fc2(self.fc1.weight.mean() + x))"),
        ("self.fc3 = nn.Linear(20, 10)", "self.fc3 = torch.nn.utils.parametrizations.weight_norm(nn.Linear(20, 10))"),
    )
    assert shardable.linears == {"fc2"}


@pytest.mark.parametrize(
    ("change", "why_not", "takes_all"),
    [
        (("F.cross_entropy(outputs, targets)", "F.nll_loss(outputs.log_softmax(1), targets)"), "", "log_softmax"),
        (("F.cross_entropy(outputs, targets)", "outputs.sum(1)[targets].mean()"), "", "sum"),
        (
            ("F.cross_entropy(outputs, targets)", "outputs.nonsense(targets)"),
            "loss_fn takes no sharded scores (AttributeError: 'ShardedScores' object has no attribute 'nonsense')",
            "",
        ),
        (
            ("return self.fc3(torch.tanh(self.fc2(x)))", "return {'scores': self.fc3(torch.tanh(self.fc2(x)))}"),
            "the model's output is more than one tensor",
            "",
        ),
        (
            (
                "def example_targets",
                "def make_optimizer(params):\n    return torch.optim.Adafactor(params)\n\ndef example_targets",
            ),
            "make_optimizer's update of a tensor is not that of its rows",
            "",
        ),
        (
            (
                "def example_targets",
                "def make_optimizer(params):\n    return torch.optim.AdamW(params)\n\ndef example_targets",
            ),
            "",
            "",
        ),
        (
            (
                "def example_targets",
                "def make_optimizer(params):\n    optimizer = torch.optim.SGD(params, lr=1.0)\n"
                "    clip = lambda *_: torch.nn.utils.clip_grad_norm_(params, 1.0) and None\n"
                "    optimizer.register_step_pre_hook(clip)\n    return optimizer\n\ndef example_targets",
            ),
            "make_optimizer's update of a tensor is not that of its rows",
            "",
        ),
        (
            ("def example_targets", "def make_optimizer(params):\n    raise OSError('no disk')\n\ndef example_targets"),
            "whether make_optimizer can train parts of a tensor is unknown (OSError: no disk)",
            "",
        ),
    ],
    ids=["nll", "sum", "attribute", "dict", "adafactor", "adamw", "clipped", "error"],
)
def test_the_loss_and_the_optimiser_are_tried(
    tmp_path: Path, change: tuple[str, str], why_not: str, takes_all: str
) -> None:
    changes = [change]
    if "scores" in change[1]:
        changes.append(("F.cross_entropy(outputs, targets)", "F.cross_entropy(outputs['scores'], targets)"))
    shardable = found(tmp_path, *changes)
    assert (shardable.why_not, shardable.takes_all) == (why_not, takes_all)
