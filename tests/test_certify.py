"""The certificate: it passes for what the compiler emits and fails for every tampering."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stanza_compiler.compiler import compile_source
from stanza_compiler.errors import CertificateError
from stanza_compiler.loader import load
from stanza_compiler.options import Options
from stanza_compiler.passes.certify import certify
from stanza_compiler.plan import Request


@pytest.fixture(scope="module")
def program(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("certify") / "out"
    request = Request(strategy="separate", cut_after="head.1")
    compile_source(Options(str(models / "residual.py"), out=out, request=request))
    return out


def test_it_names_what_was_compared(program: Path) -> None:
    entry = json.loads((program / "plan.json").read_text())["certificate"]
    assert entry["passed"]
    assert entry["buffers_equal"]
    assert entry["names_equal"]
    assert entry["forward_max_abs_diff"] < 1e-5
    assert entry["gradient_max_abs_diff"] < 1e-5
    assert {"train at batch 2", "eval at batch 2", "train at batch 3", "eval at batch 3", "sgd step"} <= set(
        entry["modes"]
    )


def _replaced(file: str, old: str, new: str) -> Callable[[Path], None]:
    def tamper(folder: Path) -> None:
        text = (folder / file).read_text()
        assert old in text, text
        (folder / file).write_text(text.replace(old, new, 1))

    return tamper


def _reweighted(folder: Path) -> None:
    path = folder / "weights" / "fc_stage.pt"
    tensors = torch.load(path, weights_only=True)
    tensors["head.4.bias"][0] += 0.01
    torch.save(tensors, path)


@pytest.mark.parametrize(
    ("tamper", "told"),
    [
        (_replaced("fc_stage.py", "nn.Tanh()", "nn.ReLU()"), "output 0"),
        (_replaced("conv_stage.py", "self.blocks[0].relu(x)", "x"), "output 0"),
        (_replaced("conv_stage.py", "nn.BatchNorm2d(8)", "nn.BatchNorm2d(8, momentum=0.2)"), "buffer"),
        (_replaced("fc_stage.py", 'self.head["3"](x)', 'self.head["3"](x.detach())'), "gradient of"),
        (_replaced("fc_stage.py", "nn.Linear(300, 7)", "nn.Linear(300, 7, bias=False)"), "can't be built"),
        (_replaced("conv_stage.py", "return", "return 2 *"), "output 0"),
        (_reweighted, "head.4.bias starts with another value"),
        (_replaced("fc_stage.py", "return", "raise IndexError('no')\n        return"), "IndexError"),
    ],
)  # fmt: skip
def test_a_program_that_computes_anything_else_is_refused(
    program: Path, models: Path, tmp_path: Path, tamper: Callable[[Path], None], told: str
) -> None:
    folder = tmp_path / "tampered"
    for path in program.rglob("*"):
        target = folder / path.relative_to(program)
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    tamper(folder)
    with load(Options(str(models / "residual.py"))) as source, pytest.raises(CertificateError, match=told):
        certify(source, folder)


def test_the_users_model_is_as_before(program: Path, models: Path) -> None:
    with load(Options(str(models / "residual.py"))) as source:
        before = {name: tensor.clone() for name, tensor in source.module.state_dict().items()}
        random = torch.get_rng_state()
        certify(source, program)
        assert all(torch.equal(before[name], tensor) for name, tensor in source.module.state_dict().items())
        assert all(parameter.grad is None for parameter in source.module.parameters())
        assert source.module.training
        assert torch.equal(random, torch.get_rng_state())


def test_a_failing_certificate_leaves_no_folder(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise CertificateError("residual.py", "differs", "report it")

    monkeypatch.setattr("stanza_compiler.compiler.certify", refuse)
    with pytest.raises(CertificateError):
        compile_source(Options(str(models / "residual.py"), out=tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


def test_no_verify_leaves_the_certificate_out(models: Path, tmp_path: Path) -> None:
    options = Options(str(models / "small_cnn.py"), out=tmp_path / "out", verify=False)
    assert compile_source(options).plan.certificate is None
    again = compile_source(replace(options, force=True))
    assert any("--no-verify" in note for note in again.plan.notes)


def test_a_batch_that_the_model_itself_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "normed.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "def build_model():\n    return nn.Sequential(nn.Linear(3, 40), nn.BatchNorm1d(40), nn.Linear(40, 5))\n\n"
        "def example_inputs():\n    return (torch.randn(4, 3),)\n"
    )
    plan = compile_source(Options(str(tmp_path / "normed.py"), out=tmp_path / "out")).plan
    assert plan.certificate is not None
    assert [name.partition(" (")[0] for name in plan.certificate.refused] == ["train at batch 1"]
    assert "Expected more than 1 value per channel" in plan.certificate.refused[0]
    assert "eval at batch 1" in plan.certificate.modes
    assert "train at batch 1" in (tmp_path / "out" / "report.md").read_text()


def test_a_parameter_that_nothing_uses_starts_with_its_own_value_too(tmp_path: Path) -> None:
    (tmp_path / "unused.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__(nn.Linear(3, 4), nn.Linear(4, 200))\n"
        "        self.unused = nn.Parameter(torch.ones(2))\n\n"
        "    def forward(self, x):\n        return self[1](self[0](x))\n\n\n"
        "def build_model():\n    return Net()\n\n\ndef example_inputs():\n    return (torch.ones(4, 3),)\n"
    )
    options = Options(str(tmp_path / "unused.py"), out=tmp_path / "out", request=Request(strategy="data-parallel"))
    compile_source(options)
    path = tmp_path / "out" / "weights" / "model_stage.pt"
    weights = torch.load(path, weights_only=True)
    torch.save({**weights, "unused": weights["unused"] * 2}, path)
    with load(options) as source, pytest.raises(CertificateError, match="the emitted unused starts with another value"):
        certify(source, tmp_path / "out")
    torch.save(weights, path)
    stage = tmp_path / "out" / "model_stage.py"
    text = stage.read_text()
    stage.write_text(text.replace("torch.empty(2)", "torch.empty(2), requires_grad=False"))
    with load(options) as source, pytest.raises(CertificateError, match="trains other parameters: unused"):
        certify(source, tmp_path / "out")
