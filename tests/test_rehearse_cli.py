"""The command `stanza-rehearse` as a user calls it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stanza_compiler.plan import SCHEMA_VERSION, Allocation
from stanza_compiler.rehearse.arguments import parse
from stanza_compiler.rehearse.cli import main
from stanza_compiler.rehearse.errors import SandboxError
from stanza_compiler.rehearse.rehearsal import choose_allocation
from stanza_compiler.rehearse.sandbox import sandbox
from tests.launch import edit
from tests.leftovers import leftovers
from tests.test_runtime_exactness import small_program

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program on hosts that can be made here."""
    try:
        with sandbox(2, None):
            return _program(tmp_path / "out")
    except SandboxError as error:
        pytest.skip(str(error))


def _program(folder: Path) -> Path:
    """A tiny CNN: conv1 and conv2 of 224 + 1168 trained numbers on CONV, 144 numbers a sample cross the cut."""
    out = small_program(folder)
    plan = json.loads((out / "plan.json").read_text())
    plan |= {"schema_version": SCHEMA_VERSION, "source": "small_cnn.py"}
    plan["cluster"] = {"nodes": 3, "gpus_per_node": 1, "bandwidth_bit_per_s": 1e9}
    plan["stages"] = [{"role": "conv", "segments": [["conv1", "conv2"]]}, {"role": "fc", "segments": [["fc1", "fc2"]]}]
    plan["boundary"][0] |= {
        "shape": [16, 144], "dtype": "float32", "bytes_per_sample": 576, "requires_grad": True, "from_segment": 0,
        "to_segment": 1,
    }  # fmt: skip
    (out / "plan.json").write_text(json.dumps(plan))
    return out


@contextmanager
def _started(*arguments: object) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "stanza_compiler.rehearse", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "COLUMNS": "120"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _run(*arguments: object) -> tuple[int, str, str]:
    with _started(*arguments) as process:
        out, err = process.communicate(timeout=200)
    assert leftovers(process.pid) == []
    return process.returncode, out, err


@pytest.mark.slow
def test_a_small_cnn_on_three_hosts_against_ddp(program: Path) -> None:
    status, out, err = _run(
        program,
        "--hosts",
        3,
        "--bandwidth",
        "100Mbit",
        "--steps",
        6,
        "--against",
        "ddp",
        "--global-batch-size",
        12,
        "--json",
    )
    assert (status, err) == (0, "")
    told = json.loads(out)
    assert (told["samples"], told["allocation"]["placement"]) == (12, "dedicated")
    stanza, ddp = told["outcomes"]
    assert [stanza["name"], ddp["name"]] == ["stanza", "ddp"]
    assert [each["summary"]["steps"] for each in (stanza, ddp)] == [6, 6]
    # A CONV rank sends 6 samples of 144 numbers and a label of 8 bytes, and its half of both halves of a sum of two.
    gradients, crossing = 4 * (224 + 1168), 6 * 4 * 144
    payload = [gradients + crossing + 6 * 8, gradients + crossing + 6 * 8, 2 * crossing]
    assert stanza["prediction"]["sent_bytes"] == pytest.approx(payload)
    # The whole model is 1,392 + 4,640 + 330 numbers: 4/3 of them from each of three ranks.
    assert ddp["prediction"]["sent_bytes"] == pytest.approx([4 / 3 * 4 * (224 + 1168 + 144 * 32 + 32 + 330)] * 3)
    for outcome in (stanza, ddp):
        for measured, predicted in zip(
            outcome["summary"]["sent_bytes"], outcome["prediction"]["sent_bytes"], strict=True
        ):
            # Small messages: a header of 66 bytes each, an answer to each, and what says how a step went.
            assert 0.8 * predicted < measured < predicted + 12_000
        assert outcome["prediction"]["step_s"] > 0
        assert outcome["summary"]["step_s"]["least"] > 0


@pytest.mark.slow
def test_a_table_says_what_was_measured(program: Path) -> None:
    shutil.copytree(program, program.with_name("again"))
    beside = ("--beside", program.with_name("again"))
    status, out, _ = _run(program, "--hosts", 2, "--bandwidth", "1Gbit", "--steps", 2, "--warm-up", 1, *beside)
    assert status == 0
    assert "small_cnn.py rehearsed" in out
    assert "2 hosts, 1 rank each, no CPU quota" in out
    assert "stanza: a step in ms, and what hosts' links carry" in out
    assert "received by host 1" in out
    assert re.search(r"^ again +[\d.]+ .* [\d.]+x", out, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_nothing_stays_of_a_rehearsal_that_is_interrupted(number: signal.Signals, status: int, program: Path) -> None:
    up = program / "up"
    edit(program / "train.py", "main(PROGRAM)", f"import time; open({str(up)!r}, 'w'); time.sleep(200)")
    quota = ["--host-cpus", "0.5"] if _has_quotas() else []
    with _started(program, "--hosts", 2, "--bandwidth", "1Gbit", *quota) as process:
        for _ in range(600):
            if up.exists() or process.poll() is not None:
                break
            time.sleep(0.1)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (status, "")
    assert err == f"error: stanza-rehearse: {number.name}; run it again\n"
    assert leftovers(process.pid) == []


@pytest.mark.slow
def test_a_program_that_fails_is_told_in_one_line(program: Path) -> None:
    edit(program / "train.py", "main(PROGRAM)", "import os, sys; sys.exit('error: rank 0 (conv 0), step 2: broken')")
    status, out, err = _run(program, "--hosts", 2, "--bandwidth", "1Gbit")
    remedy = "run it by torchrun to see whether it fails without emulated hosts as well"
    assert (status, out) == (1, "")
    assert err == f"error: stanza, rank 0: exit status 1: rank 0 (conv 0), step 2: broken; {remedy}\n"


@pytest.mark.slow
def test_a_program_that_hangs_is_told_in_one_line(program: Path) -> None:
    edit(program / "train.py", "main(PROGRAM)", "import time; time.sleep(200)")
    status, _, err = _run(program, "--hosts", 2, "--bandwidth", "1Gbit", "--timeout", "2")
    assert status == 1
    assert err.startswith("error: stanza, all ranks: nothing new for 2 s, after 0 steps; ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "error: OUT: missing; pass a folder that stanza-compile wrote, see stanza-rehearse --help"),
        (["{empty}"], "error: OUT: {empty} has no train.py; pass a folder that stanza-compile wrote"),
        (["{out}", "--bandwidth", "9"], "error: --bandwidth: '9' is not a bandwidth above zero; write it like"),
        (["{out}", "--hosts", "1"], "error: --hosts: 1 hosts; pass a number from 2 to 250"),
        (["{out}", "--host-cpus", "0"], "error: --host-cpus: '0' is no number above zero; write it like 2 or 0.4"),
        (["{out}", "--host", "3"], "error: --host: No such option"),
        (["{out}", "--beside", "{empty}"], "error: --beside: {empty} has no train.py; pass a folder that"),
        (["{out}", "--beside", "{out},{out}"], "error: --beside: out is another contender's name as well; rename"),
        (["{out}", "--beside", "{other}"], "error: --beside: other trains another model than out; compile one"),
        (["{out}", "--against", "ddp,psx"], "error: --against: 'psx' is unknown; did you mean psn or ps1? pass one"),
        (["{bad}"], "error: OUT: {bad}/plan.json is no plan (KeyError: 'schema_version'); pass a folder that stanza-"),
    ],
)  # fmt: skip
def test_a_mistake_on_the_command_line_is_one_line(
    arguments: list[str], told: str, tmp_path: Path, capsys: Captured
) -> None:
    folders = {"out": _program(tmp_path / "out"), "empty": tmp_path / "empty", "bad": tmp_path / "bad"}
    folders["other"] = _program(tmp_path / "other")
    edit(folders["other"] / "plan.json", '"source"', '"model_hash": "another", "source"')
    folders["empty"].mkdir()
    folders["bad"].mkdir()
    (folders["bad"] / "train.py").touch()
    (folders["bad"] / "plan.json").write_text("{}")
    assert main([argument.format(**folders) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(told.format(**folders))
    assert err.count("\n") == 1


def test_help_is_no_mistake(capsys: Captured) -> None:
    assert main(["--help"]) == 0
    assert "--against" in capsys.readouterr().out


def _has_quotas() -> bool:
    try:
        with sandbox(1, 0.5):
            return True
    except SandboxError:
        return False


def test_hosts_that_share_columns_are_rehearsed_as_the_plan_says(tmp_path: Path) -> None:
    out = _program(tmp_path / "out")
    plan = json.loads((out / "plan.json").read_text())
    plan["allocation"] |= {"conv_workers": 3, "fc_workers": 3, "placement": "sharded"}
    plan["sharding"] = {"columns": {"fc1": 32, "fc2": 10}, "why_not": ""}
    (out / "plan.json").write_text(json.dumps(plan))
    # all of three; twelve, but the second layer has ten columns
    for ranks, sharing in ((3, 3), (12, 10)):
        options = parse([str(out), "--hosts", str(ranks)])
        assert options is not None
        assert choose_allocation(options) == Allocation(ranks, sharing, "sharded")
