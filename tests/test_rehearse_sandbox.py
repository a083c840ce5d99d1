"""Emulated hosts: what their links and processors give, and that nothing of them stays."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stanza_compiler.rehearse.errors import SandboxError
from stanza_compiler.rehearse.messages import Failure, Measured, Run
from stanza_compiler.rehearse.quota import quotas
from stanza_compiler.rehearse.sandbox import Sandbox, sandbox
from tests.leftovers import leftovers

MEGABYTES = 2

# Every rank r > 0 sends so much to rank 0 in a step, by nothing but sockets; a line of metrics is what it took.
SENDERS = f"""
import json, os, socket, sys, time
rank, size, chunk = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), {MEGABYTES} * 1_000_000
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    server = socket.create_server(address)
    peers = [server.accept()[0] for _ in range(size - 1)]
    with open(sys.argv[1], "w") as metrics:
        for step in range(1, int(sys.argv[2]) + 1):
            start = time.perf_counter()
            for peer in peers:
                peer.sendall(b"go")
                left = chunk
                while left:
                    left -= len(peer.recv(min(left, 1 << 16)))
            print(json.dumps({{"step": step, "samples": 1, "samples_per_s": 1 / (time.perf_counter() - start)}}),
                  file=metrics, flush=True)
else:
    for _ in range(200):
        try:
            peer = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.02)
    while peer.recv(2):
        peer.sendall(bytes(chunk))
"""

# Works for a second of its own processor's time; the line says at what share of a processor.
WORKER = """
import json, os, sys, time
start, used = time.perf_counter(), time.process_time()
with open(sys.argv[1] if os.environ["RANK"] == "0" else os.devnull, "w") as metrics:
    for step in range(1, int(sys.argv[2]) + 1):
        while time.process_time() - used < 0.1 * step:
            pass
        share = (time.process_time() - used) / (time.perf_counter() - start)
        print(json.dumps({"step": step, "samples": share, "samples_per_s": 1}), file=metrics, flush=True)
"""


@pytest.fixture
def two_hosts() -> Iterator[Sandbox]:
    try:
        with sandbox(2, None) as inside:
            yield inside
    except SandboxError as error:
        pytest.skip(str(error))
    assert leftovers() == []


def _run(folder: Path, script: str, *, bit_per_s: float | None = None, steps: int = 5, timeout_s: float = 60) -> Run:
    (folder / "script.py").write_text(script)
    metrics = str(folder / "metrics.jsonl")
    return Run(
        command=(str(folder / "script.py"), metrics, str(steps + 1)),
        folder=str(folder),
        metrics=metrics,
        ranks_per_host=1,
        bit_per_s=bit_per_s,
        warm_up=1,
        steps=steps,
        patience_s=60,
        timeout_s=timeout_s,
    )


@pytest.mark.slow
def test_a_link_carries_its_rate_and_counts_what_crosses(two_hosts: Sandbox, tmp_path: Path) -> None:
    steps: list[int] = []
    measured = two_hosts.run(_run(tmp_path, SENDERS, bit_per_s=100e6), on_step=steps.append)
    assert isinstance(measured, Measured)
    assert steps == [1, 2, 3, 4, 5, 6]
    seconds = sorted(1 / float(str(line["samples_per_s"])) for line in measured.lines)
    # 2 MB at 100 Mbit/s are 160 ms, 167 with the headers of 1,448-byte frames; a burst may leave at once.
    assert seconds[0] > 0.155
    assert seconds[2] < 0.25
    assert 5 * MEGABYTES * 1e6 <= measured.sent_bytes[1] < 1.03 * 5 * MEGABYTES * 1e6
    assert measured.received_bytes[0] == pytest.approx(measured.sent_bytes[1], rel=1e-3)


@pytest.mark.slow
def test_links_without_limit_are_faster(two_hosts: Sandbox, tmp_path: Path) -> None:
    two_hosts.run(_run(tmp_path, SENDERS, bit_per_s=20e6, steps=1), on_step=lambda step: None)
    measured = two_hosts.run(_run(tmp_path, SENDERS, steps=3), on_step=lambda step: None)
    assert isinstance(measured, Measured)
    assert min(1 / float(str(line["samples_per_s"])) for line in measured.lines) < 0.1


@pytest.mark.slow
def test_a_host_gets_its_quota_of_processors(tmp_path: Path) -> None:
    try:
        with sandbox(2, 0.25) as inside:
            measured = inside.run(_run(tmp_path, WORKER, steps=4), on_step=lambda step: None)
    except SandboxError as error:
        pytest.skip(str(error))
    assert isinstance(measured, Measured)
    assert 0.05 < float(str(measured.lines[-1]["samples"])) < 0.30
    assert leftovers() == []


def test_the_first_rank_that_failed_says_why(two_hosts: Sandbox, tmp_path: Path) -> None:
    script = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit('error: rank 1: broken')\ntime.sleep(100)\n"
    result = two_hosts.run(_run(tmp_path, script), on_step=lambda step: None)
    assert result == Failure(1, "exit status 1: rank 1: broken")


@pytest.mark.slow
def test_a_program_that_hangs_is_ended_after_the_timeout(two_hosts: Sandbox, tmp_path: Path) -> None:
    start = time.monotonic()
    result = two_hosts.run(_run(tmp_path, "import time\ntime.sleep(100)\n", timeout_s=1.5), on_step=lambda step: None)
    assert result == Failure(-1, "nothing new for 1.5 s, after 0 steps")
    assert time.monotonic() - start < 20


@pytest.mark.slow
def test_enough_steps_after_the_patience_are_enough(two_hosts: Sandbox, tmp_path: Path) -> None:
    script = SENDERS.replace("start = time", "time.sleep(0.3); start = time")
    run = _run(tmp_path, script, steps=50)
    measured = two_hosts.run(
        Run(**{**{name: getattr(run, name) for name in Run.__slots__}, "patience_s": 0.7}), on_step=lambda step: None
    )
    assert isinstance(measured, Measured)
    assert 2 <= len(measured.lines) <= 6


def test_hosts_end_with_the_process_that_made_them(tmp_path: Path) -> None:
    """SIGKILL gives nobody time to clean up."""
    run = _run(tmp_path, f"import time, pathlib\npathlib.Path({str(tmp_path / 'up')!r}).touch()\ntime.sleep(100)\n")
    fields = {name: getattr(run, name) for name in Run.__slots__}
    code = f"""
from stanza_compiler.rehearse.messages import Run
from stanza_compiler.rehearse.sandbox import sandbox
with sandbox(2, {_quota()}) as inside:
    inside.run(Run(**{fields!r}), on_step=print)
"""
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, env=_environment()) as process:
        for _ in range(300):
            if (tmp_path / "up").exists() or process.poll() is not None:
                break
            time.sleep(0.1)
        if process.poll() is not None:
            assert process.stderr is not None
            assert b"SandboxError" in process.stderr.read()
            pytest.skip("no sandbox here")
        process.kill()
    for _ in range(100):
        if not leftovers(process.pid):
            break
        time.sleep(0.1)
    assert leftovers(process.pid) == []


def test_no_quota_is_possible_without_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self, *_, **__: "")
    with (
        pytest.raises(SandboxError, match=r"--host-cpus: no cgroup here gives CPU quotas to its children; run as root"),
        quotas(2, 0.5),
    ):
        raise AssertionError


def test_a_cgroup_of_version_2_is_turned_on_and_off_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder stands in for the file system: what is written where is all that can be seen of it here."""
    _fake_v2(tmp_path, monkeypatch)
    with quotas(2, 0.5) as folders:
        assert [Path(folder).parent.parent for folder in folders] == [tmp_path, tmp_path]
        assert [(Path(folder) / "cpu.max").read_text() for folder in folders] == ["10000 20000"] * 2
        assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "-cpu"


def _fake_v2(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "cgroup.controllers").write_text("cpu memory")
    (folder / "cgroup.subtree_control").write_text("")
    real, mkdir, rmdir = Path.read_text, Path.mkdir, Path.rmdir
    told = {"/proc/self/mounts": f"cgroup2 {folder} cgroup2 rw 0 0\n", "/proc/self/cgroup": "0::/\n"}
    monkeypatch.setattr(Path, "read_text", lambda self, *a, **k: told.get(str(self)) or real(self, *a, **k))

    def make(self: Path) -> None:
        mkdir(self)
        (self / "cgroup.subtree_control").write_text("")

    def remove(self: Path) -> None:
        for file in self.glob("c*"):
            file.unlink()
        rmdir(self)

    monkeypatch.setattr(Path, "mkdir", make)
    monkeypatch.setattr(Path, "rmdir", remove)


def _quota() -> float | None:
    """One that this machine can give, so that its cgroups are seen to vanish."""
    try:
        with quotas(1, 0.5):
            return 0.5
    except SandboxError:
        return None


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


def test_messages_survive_json() -> None:
    failure = Failure(3, "exit status 1")
    assert Failure(**json.loads(json.dumps({"rank": failure.rank, "what": failure.what}))) == failure
