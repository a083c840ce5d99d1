"""Each peer against one process that trains on the same global batches."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from stanza_compiler.rehearse import peers
from stanza_compiler.rehearse.contenders import PEERS
from tests.launch import FORK_RANKS, _environment, run
from tests.test_runtime_exactness import small_program

FOLDER = Path(peers.__file__).parent
STEPS, GLOBAL_BATCH = 3, 24
FLAGS = ("--steps", str(STEPS), "--global-batch-size", str(GLOBAL_BATCH), "--no-shuffle")


def _launch(out: Path, peer: str, world_size: int, *flags: str) -> list[str]:
    """Run a peer as local processes; each rank's stderr, when all have ended well."""
    module, *more = PEERS[peer]
    logs = out / f"logs-{peer}"
    logs.mkdir()
    command = [str(FORK_RANKS), str(FOLDER / f"{module}.py"), str(world_size), str(logs), *more, str(out), *flags]
    process = subprocess.Popen([sys.executable, *command], env=_environment(world_size, {}), start_new_session=True)
    try:
        process.wait(150)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    errors = [(logs / f"{rank}.err").read_text() for rank in range(world_size)]
    statuses = [(logs / f"{rank}.status").read_text() for rank in range(world_size)]
    assert statuses == ["0"] * world_size, "\n".join(errors)
    return errors


@pytest.mark.parametrize(
    ("peer", "tolerance"),
    [
        ("ddp", 1e-6),
        *(
            pytest.param(peer, tolerance, marks=pytest.mark.slow)
            for peer, tolerance in {
                "ps1": 1e-6, "psn": 1e-6, "fsdp": 1e-6, "fsdp-keep": 1e-6, "pipeline": 1e-6, "ddp-fp16": 2e-3,
                "ddp-bf16": 1e-2,
            }.items()
        ),
    ],
)  # fmt: skip
def test_a_peer_trains_what_one_process_trains(peer: str, tolerance: float, tmp_path: Path) -> None:
    out = small_program(tmp_path / "out")
    run(out, 1, *FLAGS, "--export", out / "one.pt")
    _launch(out, peer, 3, *FLAGS, "--export", str(out / "peer.pt"))
    one: dict[str, Tensor] = torch.load(out / "one.pt", weights_only=True)
    trained: dict[str, Tensor] = torch.load(out / "peer.pt", weights_only=True)
    start = torch.load(out / "weights" / "conv_stage.pt", weights_only=True)
    assert not torch.equal(one["conv1.weight"], start["conv1.weight"])
    assert set(trained) >= {name for name in one if not name.startswith("unused")}
    for name, tensor in trained.items():
        torch.testing.assert_close(tensor, one[name], rtol=tolerance, atol=tolerance, msg=name)
