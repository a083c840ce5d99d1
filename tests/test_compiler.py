"""The passes in order, and what happens to OUT."""

from dataclasses import replace
from pathlib import Path

import pytest

from stanza_compiler.cluster import Cluster
from stanza_compiler.compiler import PASSES, compile_source
from stanza_compiler.errors import StanzaError, UsageError
from stanza_compiler.options import Options
from stanza_compiler.plan import Request


def small(models: Path, out: Path, **changes: object) -> Options:
    options = Options(str(models / "small_cnn.py"), out=out, request=Request(strategy="separate"), verify=False)
    return replace(options, **changes)  # type: ignore[arg-type]


def test_every_pass_is_told_once_in_order(models: Path, tmp_path: Path) -> None:
    told = []
    compile_source(
        small(models, tmp_path / "out", verify=True), on_pass=lambda name, result, seconds: told.append(name)
    )
    assert tuple(told) == PASSES


def test_a_dry_run_writes_nothing(models: Path, tmp_path: Path) -> None:
    compilation = compile_source(small(models, tmp_path / "out", dry_run=True))
    assert compilation.out is None
    assert list(tmp_path.iterdir()) == []


META = """\
import torch
from torch import nn


def build_model():
    with torch.device("meta"):
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 65536))


def example_inputs():
    return (torch.ones(2, 3, 8, 8),)


def example_targets():
    return torch.zeros(2, dtype=torch.int64)


def loss_fn(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)
"""


def test_a_model_without_memory_is_planned(tmp_path: Path) -> None:
    """By hand: 8 x 3 x 9 products at 64 places, then 512 x 65,536; 8 x 64 floats cross."""
    (tmp_path / "model.py").write_text(META)
    options = Options(str(tmp_path / "model.py"), request=Request(strategy="separate"), verify=False, dry_run=True)
    plan = compile_source(options).plan
    assert plan.totals.forward_flops == 2 * 8 * 3 * 9 * 64 + 2 * 512 * 65536
    assert plan.totals.parameter_bytes == 4 * (8 * 27 + 8 + 512 * 65536 + 65536)
    assert [tensor.bytes_per_sample for tensor in plan.boundary] == [4 * 8 * 64]
    assert plan.stage("fc").segments == (("3",),)


def test_out_holds_what_the_contract_names(models: Path, tmp_path: Path) -> None:
    compile_source(small(models, tmp_path / "out"))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "conv_stage.py", "fc_stage.py", "whole_model.py", "train.py", "runtime", "weights", "user_model.py",
        "plan.json", "report.md", "README.md",
    }  # fmt: skip


def test_verdict_data_parallel_emits_one_stage(models: Path, tmp_path: Path) -> None:
    compile_source(small(models, tmp_path / "out", request=Request(strategy="data-parallel"), verify=True))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "model_stage.py" in names
    assert not {"conv_stage.py", "fc_stage.py"} & names


def test_an_out_that_exists_stays_unless_force_finds_a_plan_of_ours(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    for force in (False, True):
        with pytest.raises(UsageError, match="exists"):
            compile_source(small(models, out, force=force))
    assert [path.name for path in out.iterdir()] == ["notes.txt"]
    (out / "notes.txt").unlink()
    out.rmdir()
    compile_source(small(models, out))
    (out / "stale").write_text("")
    compile_source(small(models, out, force=True))
    assert not (out / "stale").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_whatever_fails_an_old_out_stays(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    compile_source(small(models, out))
    before = sorted((path.name, path.stat().st_mtime_ns) for path in out.rglob("*"))

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stanza_compiler.compiler.emit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compile_source(small(models, out, force=True))
    assert sorted((path.name, path.stat().st_mtime_ns) for path in out.rglob("*")) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_missing_parent_folder_is_told_before_any_work(models: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="parent folder"):
        compile_source(small(models, tmp_path / "no" / "out"))


def test_the_plan_of_one_compile_is_obeyed_by_the_next(models: Path, tmp_path: Path) -> None:
    cluster = Cluster(nodes=3)
    first = compile_source(small(models, tmp_path / "one", cluster=cluster)).plan
    fc_ops = first.stage("fc").segments[0]
    request = Request(strategy="separate", fc_ops=fc_ops, placement="dedicated", conv_workers=2, fc_workers=1)
    second = compile_source(small(models, tmp_path / "two", cluster=cluster, request=request)).plan
    assert second.stage("fc").segments[0] == fc_ops
    assert (second.allocation.conv_workers, second.allocation.fc_workers) == (2, 1)


def test_the_data_free_half_of_a_failure_names_the_users_line(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "import torch\n\ndef build_model():\n    return torch.nn.Linear(3, 4)\n\n"
        "def example_inputs():\n    return (torch.randn(2, 5),)\n"
    )
    with pytest.raises(StanzaError) as caught:
        compile_source(Options(str(tmp_path / "bad.py"), out=tmp_path / "out"))
    assert str(caught.value).startswith("bad.py")
    assert not (tmp_path / "out").exists()


PARAMETRIZED = """
import torch
from torch import nn
from torch.nn.utils import parametrizations

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = parametrizations.weight_norm(nn.Conv2d(3, 8, 3))
        self.hidden = parametrizations.spectral_norm(nn.Linear(8, 300))
        self.out = nn.Linear(300, 10)

    def forward(self, x):
        return self.out(self.hidden(torch.relu(self.conv(x)).mean((2, 3))))

def build_model():
    return Net()

def example_inputs():
    return (torch.randn(4, 3, 16, 16),)
"""


def test_layers_with_norms_of_their_weights_are_compiled(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(PARAMETRIZED)
    out = tmp_path / "out"
    compiled = compile_source(Options(str(tmp_path / "model.py"), out=out, request=Request(strategy="separate")))
    assert compiled.plan.certificate is not None
    assert compiled.plan.certificate.passed
    assert "conv.parametrizations.weight.original0" in compiled.plan.state_dict
