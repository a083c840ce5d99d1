"""Submodules that stay whole because no front-end sees through them."""

import json
from pathlib import Path

import pytest
import torch

from stanza_compiler.cli import main
from stanza_compiler.passes.certify import imported

MODEL = """
import torch
from torch import nn


class Steep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5


class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, h):
        return Steep.apply(self.mix(h))


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, h):
        return self.a(h) if h.sum() > 0 else self.b(h)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.gate = Gate(8)
        self.router = Router()
        self.fc = nn.Linear(8, 400)

    def forward(self, x):
        return self.fc(self.router(self.gate(self.conv(x).mean((2, 3)))))


def build_model():
    return Net()


def example_inputs():
    return (torch.randn(4, 3, 8, 8),)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_a_branch_on_values_and_an_autograd_function_stay_whole_in_their_submodules(model: Path) -> None:
    out = model.parent / "out"
    assert main([str(model), "-o", str(out), "--strategy", "separate"]) == 0
    plan = json.loads((out / "plan.json").read_text())
    assert plan["certificate"]["passed"]
    kept = [note.partition(" ")[0] for note in plan["notes"] if "is kept whole" in note]
    assert sorted(kept) == ["gate", "router"]
    assert sum(stage["parameters"] for stage in plan["stages"]) == 3 * 8 * 9 + 8 + 3 * (64 + 8) + 8 * 400 + 400
    with imported(out) as whole_model:
        emitted = whole_model.build_model()
        x = torch.randn(3, 3, 8, 8)
        h = emitted.conv(x).mean((2, 3))
        mixed = emitted.gate.mix(h) * 2
        chosen = emitted.router.a if mixed.sum() > 0 else emitted.router.b
        torch.testing.assert_close(emitted(x), emitted.fc(chosen(mixed)))
        emitted(x).sum().backward()
        upstream = 5 * (torch.ones(3, 400) @ emitted.fc.weight @ chosen.weight)  # 5 is Steep's slope, not its factor 2
        torch.testing.assert_close(emitted.gate.mix.weight.grad, upstream.t() @ h)


def test_a_leaf_that_is_asked_for_is_one_op(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model.write_text(MODEL.replace("return Steep.apply(self.mix(h))", "return self.mix(h).relu()"))
    argv = [str(model), "--dry-run", "--json", "--leaf", "gate", "--leaf", "router", "--strategy", "separate"]
    assert main(argv) == 0
    plan = json.loads(capsys.readouterr().out)
    ops = [name for stage in plan["stages"] for names in stage["segments"] for name in names]
    assert {"gate", "router"} <= set(ops)
    assert not [name for name in ops if name.startswith(("gate.", "router."))]
    # The linear layer inside of each counts, 2 per multiply-add: one branch of the router.
    assert plan["totals"]["forward_flops"] == 2 * (3 * 9 * 8 * 36 + 2 * 64 + 8 * 400)


def test_a_leaf_that_is_not_there_is_told(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(model), "--dry-run", "--leaf", "gata"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == (
        "error: --leaf: the model has no submodule gata; did you mean gate? give its path, such as layer1.0"
    )
