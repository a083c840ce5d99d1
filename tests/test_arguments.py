"""The command line as Options."""

from dataclasses import replace
from pathlib import Path

import pytest

from stanza_compiler import compiler
from stanza_compiler.arguments import PASSES, Invocation, parse
from stanza_compiler.cluster import DEVICES, Cluster
from stanza_compiler.errors import UsageError
from stanza_compiler.options import InputSpec, Options
from stanza_compiler.plan import Request, to_json
from tests.small_plan import PLAN


def _options(*argv: str) -> Options:
    invocation = parse(["model.py", *argv])
    assert isinstance(invocation, Invocation)
    return invocation.options


def test_the_defaults_are_those_of_options() -> None:
    assert parse(["model.py"]) == Invocation(Options("model.py"), as_json=False)


def test_every_pass_of_the_compiler_can_be_dumped() -> None:
    assert PASSES == compiler.PASSES


def test_every_option_has_its_place() -> None:
    cluster = "--nodes 10 --gpus-per-node 2 --bandwidth 100Gbit --latency 5us --device a100"
    request = "--strategy separate --placement dedicated --conv-workers 18 --fc-workers 2 --cut-after features"
    rest = "--trace fx --batch-norm local --no-verify --dry-run --dump profile --force --traceback"
    argv = f"-o out {cluster} --global-batch-size 512 {request} {rest}".split()
    inputs = ["--input", "4x3:float32", "--input", "4x2:int64[0,9)", "--batch-axis", "x=0", "--batch-axis", "y=none"]
    assert _options(*argv, *inputs) == Options(
        source="model.py",
        out=Path("out"),
        cluster=Cluster(10, 2, 100e9, 5e-6, device=DEVICES["a100"]),
        request=Request("separate", "dedicated", 18, 2, None, 512, "features"),
        inputs=(InputSpec((4, 3)), InputSpec((4, 2), "int64", 0, 9)),
        batch_axes=(("x", 0), ("y", None)),
        trace="fx",
        verify=False,
        dry_run=True,
        force=True,
        dump="profile",
    )


def test_measure_is_a_device_without_figures_of_its_own() -> None:
    options = _options("--device", "measure")
    assert options.measure
    assert options.cluster.device == replace(DEVICES["cpu"], name="measure")


def test_a_plan_gives_the_cut_and_the_allocation(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(to_json(PLAN))
    request = _options("--plan", str(file), "--batch-size", "8").request
    assert request == Request("separate", "dedicated", 9, 1, 8, None, None, ("head|0", "lstm"))


def test_help_is_no_invocation(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["--help"]) is None
    assert "--global-batch-size" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("", "SOURCE: missing; pass the model's file"),
        ("a.py b.py", "command line: Got unexpected extra argument"),
        ("a.py --nodse 3", "--nodse: No such option: --nodse; did you mean --nodes?"),
        ("a.py --nodes", "--nodes: Option '--nodes' requires an argument; see"),
        ("a.py --json=1", "--json: Option '--json' does not take a value; see"),
        ("a.py --nodes 0", "--nodes: '0' is not a positive whole number"),
        ("a.py --gpus-per-node -1", "--gpus-per-node: '-1' is not a positive"),
        ("a.py --batch-size 0", "--batch-size: '0' is not a positive"),
        ("a.py --global-batch-size none", "--global-batch-size: 'none' is not a positive"),
        ("a.py --conv-workers 0", "--conv-workers: '0' is not a positive"),
        ("a.py --fc-workers -2", "--fc-workers: '-2' is not a positive"),
        ("a.py --bandwidth fast", "--bandwidth: 'fast' is not a bandwidth"),
        ("a.py --latency 0us", "--latency: '0us' is not a time"),
        ("a.py --device v101", "--device: 'v101' is unknown; did you mean v100?"),
        ("a.py --strategy sperate", "--strategy: 'sperate' is unknown; did you mean separate?"),
        ("a.py --placement shared", "--placement: 'shared' is unknown; did you mean sharded?"),
        ("a.py --batch-norm sync", "--batch-norm: statistics over all ranks are not built yet"),
        ("a.py --trace jit", "--trace: 'jit' is unknown"),
        ("a.py --batch-norm global", "--batch-norm: 'global' is unknown"),
        ("a.py --dump plan", "--dump: 'plan' is unknown"),
        ("a.py --input 3by4", "--input: '3by4' does not describe a tensor"),
        ("a.py --batch-axis x", "--batch-axis: 'x' names no batch axis"),
        ("a.py --plan absent.json", "--plan: absent.json: no such file or directory"),
        ("a.py --cluster absent.toml", "--cluster: absent.toml: no such file or directory"),
        ("a.py --batch-size 2 --global-batch-size 4", "--batch-size: can't be combined with --global-batch-size"),
        ("a.py --plan p.json --cut-after x", "--plan: can't be combined with --cut-after"),
        (
            "a.py --strategy data-parallel --fc-workers 1",
            "--strategy data-parallel: can't be combined with --fc-workers",
        ),
        ("a.py --json --dump trace", "--json: can't be combined with --dump"),
        ("a.py --dry-run --dump emit", "--dry-run: can't be combined with --dump emit"),
    ],
)
def test_a_mistake_is_told_with_place_and_remedy(argv: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(argv.split())
    assert str(caught.value).startswith(message)
    assert "; " in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema_version": 99}', "\0"])
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"pass a plan.json that stanza-compile wrote"):
        _options("--plan", str(file))
