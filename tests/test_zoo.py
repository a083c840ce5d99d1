"""The zoo's own judgement: equal is found equal, and every kind of wrong program is found wrong."""

import subprocess
from collections import OrderedDict, namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import zoo
from benchmarks.zoo_compare import compare
from benchmarks.zoo_models import Model
from benchmarks.zoo_timm import timm_models
from benchmarks.zoo_torchvision import torchvision_models
from benchmarks.zoo_transformers import transformers_models

Pair = namedtuple("Pair", ["first", "second"])


class Small(nn.Module):
    """A model in which a program can get everything wrong that the zoo looks for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(5, 2)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.drop(self.norm(self.first(x)))
        return hidden

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.hidden(x)
        return OrderedDict(out=self.last(hidden), more=Pair(hidden, None))


def _zoo_model(model: type[nn.Module] = Small) -> Any:
    return SimpleNamespace(
        build_model=model,
        example_inputs=lambda batch=2: (torch.randn(batch, 6, generator=torch.Generator().manual_seed(batch)),),
        loss_fn=lambda outputs, _: outputs["out"].square().mean(),
    )


class Backwards(torch.autograd.Function):
    """Forward as it is, backward a little off."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 1.001


class OtherOutput(Small):
    def forward(self, x: torch.Tensor) -> Any:
        result = super().forward(x)
        return OrderedDict(result, out=result["out"] * 1.0001)


class OtherGradient(Small):
    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.hidden(x)
        return OrderedDict(out=self.last(Backwards.apply(hidden)), more=Pair(hidden, None))


class NoGradient(Small):
    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.hidden(x)
        return OrderedDict(out=self.last(hidden.detach()), more=Pair(hidden, None))


class FrozenMode(Small):
    """Keeps its dropout in eval mode."""

    def train(self, mode: bool = True) -> "FrozenMode":
        super().train(mode)
        self.drop.train()
        return self


class NoStatistics(Small):
    def __init__(self) -> None:
        super().__init__()
        self.norm.momentum = 0.0


class BakedBatch(Small):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x[:2])


class OtherMask(Small):
    def forward(self, x: torch.Tensor) -> Any:
        torch.rand(1)
        return super().forward(x)


class PlainDict(Small):
    def forward(self, x: torch.Tensor) -> Any:
        return dict(super().forward(x))


class PlainTuple(Small):
    def forward(self, x: torch.Tensor) -> Any:
        result = super().forward(x)
        return OrderedDict(result, more=tuple(result["more"]))


class OtherKeys(Small):
    def forward(self, x: torch.Tensor) -> Any:
        result = super().forward(x)
        result.move_to_end("out")
        return result


class Something(Small):
    def forward(self, x: torch.Tensor) -> Any:
        result = super().forward(x)
        return OrderedDict(result, more=result["more"]._replace(second=0))


class Halves(Small):
    def forward(self, x: torch.Tensor) -> Any:
        result = super().forward(x)
        return OrderedDict(result, more=result["more"]._replace(first=result["more"].first.double()))


class Constant(Small):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("extra", torch.zeros(1), persistent=False)


class OtherName(Small):
    def __init__(self) -> None:
        super().__init__()
        self.classifier = self._modules.pop("last")
        self.__dict__["last"] = self.classifier


class OtherOrder(Small):
    def __init__(self) -> None:
        super().__init__()
        self._modules["first"] = self._modules.pop("first")


class Frozen(Small):
    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)


class OtherWeights(Small):
    def __init__(self) -> None:
        super().__init__()
        self.last.reset_parameters()


def test_a_model_equals_itself_and_with_a_constant_more() -> None:
    assert compare(_zoo_model(), SimpleNamespace(build_model=Small)) == []
    assert compare(_zoo_model(), SimpleNamespace(build_model=Constant)) == []
    missing = compare(_zoo_model(Constant), SimpleNamespace(build_model=Small))
    assert missing == ["buffers: 3 names instead of 4, extra"]


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (OtherOutput, "train at batch 2: the output['out']: differs by"),
        (OtherGradient, "train at batch 2: the gradient of first.weight: differs by"),
        (NoGradient, "train at batch 2: the gradient of first.weight is missing"),
        (FrozenMode, "eval at batch 2: the output['out']: differs by"),
        (NoStatistics, "train at batch 2: buffer norm.running_mean: differs by"),
        (BakedBatch, "train at batch 3: the output['out']: torch.float32[2, 2] instead of torch.float32[3, 2]"),
        (OtherMask, "train at batch 2: the output['out']: differs by"),
        (PlainDict, "train at batch 2: output: a dict instead of a OrderedDict"),
        (PlainTuple, "train at batch 2: output['more']: ('tuple', (), 2) instead of ('Pair', ('first', 'second'), 2)"),
        (OtherKeys, "train at batch 2: output: keys ['more', 'out'] instead of ['out', 'more']"),
        (Something, "train at batch 2: output['more'][1]: 0 instead of None"),
        (Halves, "train at batch 2: the output['more'][0]: torch.float64[2, 5] instead of torch.float32[2, 5]"),
        (OtherName, "state_dict: 9 names instead of 9, classifier.bias, classifier.weight, last.bias, last.weight"),
        (OtherOrder, "state_dict: 9 names instead of 9, in another order"),
        (Frozen, "parameters: 6 names instead of 6, ('first.bias', False)"),
        (OtherWeights, "the initial last.weight: differs by"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_wrong_program_is_found(wrong: type[nn.Module], found: str) -> None:
    problems = compare(_zoo_model(), SimpleNamespace(build_model=wrong))
    assert any(problem.startswith(found) for problem in problems), problems


def test_a_program_that_fails_is_wrong_and_nan_proves_nothing() -> None:
    class Fails(Small):
        def forward(self, x: torch.Tensor) -> Any:
            raise RuntimeError("no")

    class Nan(Small):
        def forward(self, x: torch.Tensor) -> Any:
            return OrderedDict(out=super().forward(x)["out"] * float("nan"))

    assert compare(_zoo_model(), SimpleNamespace(build_model=Fails))[0] == "train at batch 2: raises RuntimeError: no"
    assert "proves nothing" in compare(_zoo_model(Nan), SimpleNamespace(build_model=Nan))[0]


FILE = """
import torch
from torch import nn

def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2))

def example_inputs(batch=2):
    return (torch.ones(batch, 6),)

def loss_fn(outputs, targets):
    return outputs.square().mean()
"""


@pytest.mark.parametrize(
    ("first_line", "problems"),
    [
        ("", []),
        ("import stanza_compiler", ["the emitted program imports stanza_compiler"]),
        ("import os; os._exit(3)", ["the comparison ended with 3: nothing on stderr"]),
    ],
)
def test_the_program_runs_without_the_compiler_in_an_interpreter_of_its_own(
    tmp_path: Path, first_line: str, problems: list[str]
) -> None:
    (tmp_path / "model.py").write_text(FILE)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "whole_model.py").write_text(first_line + FILE)
    found, parameters = zoo.compare(tmp_path / "model.py", tmp_path / "out")
    assert [said in line for said, line in zip(problems, found, strict=True)] == [True] * len(problems)
    assert parameters == (0 if problems else 6 * 5 + 5 + 5 * 2 + 2)


@pytest.mark.parametrize(
    ("status", "stderr", "leaves", "verdict"),
    [
        (1, "note: x\nerror: model.py:3: a branch; use torch.where", False, "refused"),
        (1, "error: model.py:3: a branch; use torch.where", True, "WRONG"),
        (1, "error: model.py: the emitted program is not the model; report this as a bug", False, "WRONG"),
        (1, "Traceback (most recent call last):\nerror: model.py: x; y", False, "WRONG"),
        (1, "error: a: b; c\nerror: d: e; f", False, "WRONG"),
        (2, "error: --strategy: unknown; pass another", False, "WRONG"),
        (-9, "", False, "WRONG"),
    ],
)
def test_refused_is_one_line_that_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, stderr: str, leaves: bool, verdict: str
) -> None:
    def fake(command: list[str], folder: str) -> subprocess.CompletedProcess[str]:
        if leaves:
            (Path(folder) / "out").mkdir()
        return subprocess.CompletedProcess(command, status, "", stderr)

    monkeypatch.setattr(zoo, "_run", fake)
    assert zoo.check(Model("any", "")).verdict == verdict


def test_a_small_resnet18_is_equal() -> None:
    (model,) = (model for model in torchvision_models() if model.name == "resnet18")
    row = zoo.check(model)
    assert (row.verdict, row.reason) == ("equal", "")
    assert row.parameters == 11_689_512  # torchvision's own table
    # The table's 1.81 G multiply-adds are at 224 px, of which (64 / 224)^2 remain in the convolutions.
    assert row.forward_flops == pytest.approx(2 * 1.814e9 * (64 / 224) ** 2, rel=0.01)


def test_a_model_that_branches_on_its_values_is_refused() -> None:
    body = "class M(nn.Module):\n    def forward(self, x):\n        return x.exp() if x.sum() > 0 else x\n"
    row = zoo.check(Model("branch", FILE + body + "\ndef build_model():\n    return M()\n"))
    assert row.verdict == "refused"
    assert "model.py:" in row.reason


def test_the_families_are_as_large_as_promised() -> None:
    assert len(torchvision_models()) == 109
    for models, size in ((transformers_models(), 20), (timm_models(), 40)):
        assert len({model.name for model in models}) == size


def test_too_few_equal_models_fail_the_family(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(model: Model) -> zoo.Row:
        return zoo.Row(model.name, "refused" if model.name == "bert" else "equal", "", 1.0)

    monkeypatch.setattr(zoo, "check", fake)
    assert zoo.main(["--family", "transformers"]) == 1
    assert capsys.readouterr().out.endswith("transformers: 19 of 20 equal, 1 refused, 0 WRONG\n")
    assert zoo.main(["--family", "transformers", "--only", "bert"]) == 0
    assert zoo.main(["--family", "transformers", "--only", "bart,bird"]) == 2
