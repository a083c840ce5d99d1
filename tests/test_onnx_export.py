"""graph.onnx: what it computes, and that its metadata is the plan's."""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import onnx
import onnxruntime
import pytest
import torch

from stanza_compiler.cli import main
from stanza_compiler.loader import load
from stanza_compiler.options import Options

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn


def build_model():
    torch.manual_seed(1)
    return Net()
"""

CNN = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.drop, self.fc = nn.Dropout(0.5), nn.Linear(8 * 4 * 4, 300)
        self.head = nn.Linear(300, 10)
        self.unused = nn.Parameter(torch.ones(7))

    def forward(self, x):
        return self.head(F.relu(self.fc(self.drop(torch.flatten(self.features(x), 1)))))

def example_inputs():
    return (torch.randn(4, 3, 8, 8),)
"""

# 2 FLOPs per multiply-add: 3x8x9 at 8x8 places, then the two Linear layers.
CNN_FLOPS = {"features.0": 2 * 3 * 8 * 9 * 64, "fc": 2 * 128 * 300, "head": 2 * 300 * 10}
CNN_BYTES = {"features.0": 4 * (3 * 8 * 9 + 8), "features.1": 4 * 16, "fc": 4 * (128 * 300 + 300), "head": 4 * 3010}

ATTENTION = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, tokens, *, mask):
        h = self.embed(tokens) * self.scale
        q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, :]))
        return {"logits": self.head(h), "hidden": (h, None), "steps": 3}

def example_inputs():
    return (torch.randint(50, (3, 5)),)

def example_kwargs():
    return {"mask": torch.ones(3, 5, dtype=torch.bool)}
"""

TWO_MODES = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.aux, self.fc = nn.Linear(6, 8), nn.Linear(8, 40), nn.Linear(8, 200)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        if self.training:
            return self.fc(h), self.aux(h)
        return self.fc(h)

def example_inputs():
    return (torch.randn(4, 6),)
"""


def written(folder: Path, text: str, *options: str) -> Path:
    """The program of a model, with its graph.onnx."""
    file = folder / "model.py"
    file.write_text(HEAD + "\n\n" + dedent(text))
    out = folder / "out"
    with contextlib.chdir(folder):
        assert main(["model.py", "-o", "out", "--onnx", "--json", *options]) == 0
    return out


def notes(thing: Any) -> dict[str, str]:
    return {entry.key.removeprefix("stanza."): entry.value for entry in thing.metadata_props}


def run_in_onnxruntime(out: Path, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    session = onnxruntime.InferenceSession(str(out / "graph.onnx"), providers=["CPUExecutionProvider"])
    given = {name: tensor.numpy() for name, tensor in inputs.items()}
    return [torch.from_numpy(value) for value in session.run(None, given)]


def inputs_of(batch: int, name: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    if name == "cnn":
        return {"x": torch.randn(batch, 3, 8, 8, generator=generator)}
    if name == "two modes":
        return {"x": torch.randn(batch, 6, generator=generator)}
    return {
        "tokens": torch.randint(50, (batch, 5), generator=generator),
        "mask": torch.rand(batch, 5, generator=generator) > 0.3,
    }


def flat(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        (CNN, "cnn", ("--strategy", "separate")),
        (CNN, "cnn", ("--strategy", "data-parallel")),
        (ATTENTION, "attention", ()),
        (TWO_MODES, "two modes", ("--strategy", "separate", "--trace", "export")),
    ],
)
def test_it_computes_what_the_model_computes_and_adds_up_to_the_plan(
    text: str, name: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    out = written(tmp_path, text, *options)
    model = onnx.load(out / "graph.onnx")
    onnx.checker.check_model(model, full_check=True)
    with load(Options(str(tmp_path / "model.py"))) as source, torch.no_grad():
        eager = source.module.eval()
        for batch in (2, 7):
            inputs = inputs_of(batch, name)
            torch.testing.assert_close(run_in_onnxruntime(out, inputs), flat(eager(**inputs)), rtol=1e-4, atol=1e-4)
        written_names = {item.name for item in model.graph.initializer}
        for parameter in eager.parameters():
            names = {key for key, other in eager.named_parameters(remove_duplicate=False) if other is parameter}
            assert len(names & written_names) == (not names & {"unused", "aux.weight", "aux.bias"})

    plan = json.loads((out / "plan.json").read_text())
    sums, left = Counter[str](), notes(model)
    for node in model.graph.node:
        entry = notes(node)
        stage = next(stage for stage in plan["stages"] if stage["role"] == entry["stage"])
        assert entry["op"] in stage["segments"][int(entry["segment"])]
        for key in ("forward_flops", "parameter_bytes"):
            sums[key] += int(entry[key])
    for key in ("forward_flops", "parameter_bytes"):
        assert sums[key] + int(left[f"without_node.{key}"]) == int(left[key]) == plan["totals"][key]
    aux = {"forward_flops": 2 * 8 * 40, "parameter_bytes": 4 * (8 * 40 + 40)} if name == "two modes" else {}
    assert int(left["without_node.forward_flops"]) == aux.get("forward_flops", 0)
    assert int(left["without_node.parameter_bytes"]) == aux.get("parameter_bytes", 4 * 7 if name == "cnn" else 0)


def test_flops_and_bytes_stand_at_the_node_that_multiplies(tmp_path: Path) -> None:
    model = onnx.load(written(tmp_path, CNN, "--strategy", "separate") / "graph.onnx")
    flops, sizes, kinds = Counter[str](), Counter[str](), {}
    for node in model.graph.node:
        entry = notes(node)
        flops[entry["op"]] += int(entry["forward_flops"])
        sizes[entry["op"]] += int(entry["parameter_bytes"])
        if int(entry["forward_flops"]):
            kinds[entry["op"]] = node.op_type
    assert +flops == Counter(CNN_FLOPS)
    assert +sizes == Counter(CNN_BYTES)
    assert kinds == {"features.0": "Conv", "fc": "Gemm", "head": "Gemm"}


def test_nothing_of_this_machine_is_in_it(tmp_path: Path) -> None:
    raw = (written(tmp_path, ATTENTION) / "graph.onnx").read_bytes()
    assert not re.findall(rb"/[\w.]+/[\w.]+|\w+\.py\b|File \"", raw)


@pytest.mark.parametrize("line", ["torch.linalg.eigvalsh(x @ x.mT)"])
def test_what_torch_onnx_refuses_is_told_and_nothing_is_left(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(6, 6)

            def forward(self, x):
                x = self.fc(x)
                return {line}

        def example_inputs():
            return (torch.randn(4, 6, 6),)
        """
    (tmp_path / "model.py").write_text(HEAD + "\n\n" + dedent(text))
    with contextlib.chdir(tmp_path):
        assert main(["model.py", "-o", "out", "--onnx"]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: model.py: --onnx: torch.onnx refuses the model, ")
    assert error.endswith("; leave out --onnx")
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["model.py"]


def test_a_dry_run_writes_no_onnx(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model.py", "--dry-run", "--onnx"]) == 2
    assert "--dry-run: can't be combined with --onnx" in capsys.readouterr().err


def test_without_onnxscript_it_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    find: Callable[..., Any] = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "onnxscript" else find(name))
    assert main([str(tmp_path / "model.py"), "--onnx"]) == 2
    assert capsys.readouterr().err.startswith("error: --onnx: torch.onnx needs the package onnxscript; install it")
