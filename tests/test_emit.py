"""What the emitted files look like, held against tests/golden, and that they stand alone."""

import filecmp
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stanza_compiler.compiler import compile_source
from stanza_compiler.options import Options
from stanza_compiler.plan import Request
from tests.against_model import assert_is_the_model, compiled, refused

GOLDEN = Path(__file__).parent / "golden"
SHOWN = ("conv_stage.py", "fc_stage.py", "whole_model.py", "train.py")
CUTS = {
    "small_cnn": "flatten",
    "residual": "head.1",
    "odd_names": "seq.\u00e9t\u00e9",
    "shared_state": "flatten",
    "structured": "conv",
    "both_roles": "transpose_1",
}

BLOCKED = "stanza_compiler", "passes", "networkx", "scipy", "jinja2", "typer", "rich"
ALONE = f"""
import importlib.abc, importlib.machinery, sys

class Refusing(importlib.abc.Loader):
    def create_module(self, spec):
        raise ImportError(spec.name + " is hidden")
    def exec_module(self, module):
        raise ImportError(module.__name__ + " is hidden")

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            return importlib.machinery.ModuleSpec(name, Refusing())

sys.meta_path.insert(0, Finder())
"""


def compiled_example(name: str, models: Path, out: Path) -> Path:
    request = Request(strategy="separate", cut_after=CUTS[name])
    compile_source(Options(str(models / f"{name}.py"), out=out, request=request))
    return out


@pytest.mark.parametrize("name", sorted(CUTS))
def test_stage_files_are_those_that_were_read_and_approved(
    name: str, models: Path, tmp_path: Path, update_golden: bool
) -> None:
    out = compiled_example(name, models, tmp_path / "out")
    golden = GOLDEN / name
    if update_golden:
        golden.mkdir(parents=True, exist_ok=True)
        for file in SHOWN:
            (golden / file).write_text((out / file).read_text(encoding="utf-8"), encoding="utf-8")
    for file in SHOWN:
        assert (out / file).read_text(encoding="utf-8") == (golden / file).read_text(encoding="utf-8")


def test_two_compiles_with_different_hash_seeds_give_the_same_bytes(models: Path, tmp_path: Path) -> None:
    outs = []
    for seed in ("0", "4242"):
        out = tmp_path / seed / "out"
        out.parent.mkdir()
        command = [sys.executable, "-m", "stanza_compiler", str(models / "shared_state.py"), "-o", str(out)]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, "--strategy", "separate"], env=environment, check=True, capture_output=True)
        outs.append(out)
    first, second = (sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file()) for out in outs)
    assert first == second
    _, mismatched, errors = filecmp.cmpfiles(*outs, [str(path) for path in first], shallow=False)
    assert (mismatched, errors) == ([], [])


def test_a_program_runs_where_the_compiler_and_its_libraries_cannot_be_imported(models: Path, tmp_path: Path) -> None:
    out = compiled_example("small_cnn", models, tmp_path / "out")
    script = f"{ALONE}\nimport runpy\nsys.path.insert(0, {str(out)!r})\nsys.argv = ['train.py', '--steps', '2']\n"
    script += f"runpy.run_path({str(out / 'train.py')!r}, run_name='__main__')\n"
    environment = {key: value for key, value in os.environ.items() if key != "WORLD_SIZE"}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "step 2" in run.stdout


def test_a_class_of_a_sibling_file_comes_along_where_nothing_else_of_the_user_does(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "shapes.py").write_text("WIDTH = 4\n")
    (folder / "outputs.py").write_text(
        "from typing import NamedTuple\n\nimport shapes\nimport torch\n\n\n"
        "class Out(NamedTuple):\n    y: torch.Tensor\n    z: torch.Tensor\n"
    )
    (folder / "model.py").write_text(
        "import torch\nfrom outputs import Out\nfrom torch import nn\n\n\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.fc = nn.Linear(4, 3)\n\n"
        "    def forward(self, x):\n        y = self.fc(x)\n        return Out(y, y.tanh())\n\n\n"
        "def build_model():\n    return Net()\n\n\n"
        "def example_inputs():\n    return (torch.ones(4, 4),)\n"
    )
    out = tmp_path / "out"
    plan = compile_source(Options(str(folder / "model.py"), out=out, request=Request("data-parallel"))).plan
    assert (plan.requires, sorted(path.name for path in out.glob("*s.py"))) == (("torch",), ["outputs.py", "shapes.py"])
    shutil.rmtree(folder)
    environment = {key: value for key, value in os.environ.items() if key != "WORLD_SIZE"}
    command = [sys.executable, str(out / "train.py"), "--steps", "2"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr


def test_nothing_of_this_machine_is_written(models: Path, tmp_path: Path) -> None:
    out = compiled_example("structured", models, tmp_path / "out")
    for path in out.rglob("*"):
        if path.is_file():
            assert str(tmp_path).encode() not in path.read_bytes(), path
            assert str(models).encode() not in path.read_bytes(), path
    assert not list(out.rglob("__pycache__"))


def test_any_name_survives_into_files_that_import_and_into_the_state_dict(models: Path, tmp_path: Path) -> None:
    shutil.copy(models / "hostile_names.py", tmp_path / "model.py")
    cut = "the cut\\'\""
    options = Options(str(tmp_path / "model.py"), out=tmp_path / "out", request=Request("separate", cut_after=cut))
    compile_source(options)
    assert_is_the_model(tmp_path)
    assert "give the cut" in (tmp_path / "out" / "conv_stage.py").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["boundary"][0]["name"] == cut


@pytest.mark.parametrize(
    "name", ["new\nline", "a\rb", '"""', "\\N", "it's", "{{ x }}", "user_model", "conv_stage", "\udcff"]
)
def test_any_name_of_the_source_file_is_fine(name: str, tmp_path: Path) -> None:
    text = """
        def spring():
            raise AssertionError

        class Net(nn.Sequential):
            def __init__(self):
                super().__init__(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 300), nn.Linear(300, 3))
        """
    compiled(tmp_path, text, name=name)
    assert_is_the_model(tmp_path, name=name)


@pytest.mark.parametrize(
    ("argument", "tensor"),
    [("self", "self"), ("bind_inputs", "bind_inputs"), ("*self", "self[0]"), ("x, bind_inputs=3", "x")],
)
def test_an_argument_that_the_program_needs_itself_is_refused(argument: str, tensor: str, tmp_path: Path) -> None:
    text = f"""
        class Net(nn.Module):
            def __init__(this):
                super().__init__()
                this.conv, this.fc = nn.Linear(6, 8), nn.Linear(8, 300)

            def forward(this, {argument}):
                return this.fc(this.conv({tensor}).relu())
        """
    assert refused(tmp_path, text).startswith("model.py: forward() has an argument ")


@pytest.mark.parametrize("sibling", ["train", "conv_stage", "runtime", "whole_model"])
def test_a_users_module_never_replaces_a_file_of_the_program(sibling: str, tmp_path: Path) -> None:
    (tmp_path / f"{sibling}.py").write_text("SCALE = 2.0\n")
    text = f"""
        from {sibling} import SCALE

        class Net(nn.Sequential):
            def __init__(self):
                super().__init__(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 300), nn.Linear(300, 3))

        def loss_fn(outputs, targets):
            return SCALE * outputs.square().mean()
        """
    assert refused(tmp_path, text) == (
        f"{sibling}.py: model.py imports it, but the program has a file of that name; rename it"
    )


def test_the_user_file_comes_along_only_when_the_program_uses_a_name_of_it(models: Path, tmp_path: Path) -> None:
    assert not (compiled_example("residual", models, tmp_path / "one") / "user_model.py").exists()
    own = compiled_example("small_cnn", models, tmp_path / "two") / "user_model.py"
    assert own.read_text(encoding="utf-8") == (models / "small_cnn.py").read_text(encoding="utf-8")
