"""Runs whose boundary and gradients travel narrower, against the same runs as they are."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from stanza_compiler.runtime.codecs import Codecs
from stanza_compiler.runtime.late_sums import LateSums
from stanza_compiler.runtime.replicas import replicate
from tests.launch import launch
from tests.test_runtime_orders import BATCH, STEPS, table_program, tied_program, train

HALVES = ("--boundary-dtype", "bf16", "--gradient-codec", "fp16")


def change(folder: Path, *layout: object, codecs: tuple[str, ...], start: dict[str, torch.Tensor]) -> torch.Tensor:
    """What five steps add to the weights."""
    exported, _ = train(folder, 3, *layout, *codecs)
    return torch.cat([(tensor - start[name]).flatten() for name, tensor in sorted(torch.load(exported).items())])


@pytest.mark.parametrize(
    ("codecs", "error"),
    [
        (HALVES, 0.02),
        pytest.param(("--boundary-dtype", "fp16"), 0.004, marks=pytest.mark.slow),
        pytest.param(("--boundary-dtype", "int8"), 0.04, marks=pytest.mark.slow),
    ],
    ids=["bf16-fp16", "fp16", "int8"],
)
def test_coded_training_goes_almost_where_exact_training_goes(
    tmp_path: Path, codecs: tuple[str, ...], error: float
) -> None:
    folder = tied_program(tmp_path / "out")
    start = {
        name: tensor
        for stage in ("conv_stage", "fc_stage")
        for name, tensor in torch.load(folder / "weights" / f"{stage}.pt").items()
    }
    start["head.weight"] = start["table.weight"]
    layout = ("--placement", "colocated", "--fc-workers", 2)
    exact, coded = (change(folder, *layout, codecs=each, start=start) for each in ((), codecs))
    assert 0 < (coded - exact).norm() <= error * exact.norm()


def test_16_bits_halve_what_a_step_sends(tmp_path: Path) -> None:
    train(tied_program(tmp_path / "out"), 3, "--conv-workers", 2, *HALVES)
    first = json.loads((tmp_path / "m.jsonl").read_text().splitlines()[0])
    # as in test_what_a_step_sends_is_sent_once; ids and targets stay as they are
    assert first["bytes_sent"] == 70 * (8 + 8 + 2 * 6 * 4) + 2 * 2 * 6 * 2 + 2 * 206 * 2


def test_int8_sends_a_byte_a_number_and_a_scale_a_row(tmp_path: Path) -> None:
    train(tied_program(tmp_path / "out"), 3, "--conv-workers", 2, "--boundary-dtype", "int8")
    first = json.loads((tmp_path / "m.jsonl").read_text().splitlines()[0])
    # the 7 x 6 numbers of a sample are one row; gain has one axis and stays as it is
    assert first["bytes_sent"] == 70 * (8 + 8) + 10 * (7 * 6 + 4) * 4 + 2 * 2 * 6 * 4 + 2 * 206 * 4


def test_of_a_replica_dense_gradients_are_narrowed_and_sparse_ones_are_not() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 2, sparse=True), nn.Linear(2, 1))
    ids = torch.tensor([1, 1, 4])
    exact_table, exact_weight = torch.autograd.grad(model(ids).sum(), [layer.weight for layer in model])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        sums = LateSums(Codecs(gradient="bf16"))
        replica = replicate(model, ["0.weight", "1.weight", "1.bias"], dist.group.WORLD, sums=sums)
        replica(ids).sum().backward()
        sums.wait()
    finally:
        dist.destroy_process_group()
    table, weight = (next(layer.parameters()).grad for layer in model)
    assert table is not None
    assert table.is_sparse
    assert torch.equal(table.to_dense(), exact_table.to_dense())
    assert weight is not None
    assert torch.equal(weight, exact_weight.bfloat16().float())
    assert not torch.equal(weight, exact_weight)


def test_the_plan_says_how_where_no_flag_does(tmp_path: Path) -> None:
    folder = table_program(tmp_path / "out")
    plan = json.loads((folder / "plan.json").read_text())
    sent = []
    for codecs in (("fp32", "none"), ("bf16", "bf16")):
        plan["boundary_dtype"], plan["gradient_codec"] = codecs
        (folder / "plan.json").write_text(json.dumps(plan))
        train(folder, 3, "--conv-workers", 2)
        sent.append(json.loads((tmp_path / "m.jsonl").read_text().splitlines()[0])["bytes_sent"])
    ids = BATCH * 4 * 8
    assert sent[1] - ids == (sent[0] - ids) / 2


def test_powersgd_is_refused_with_its_reason(tmp_path: Path) -> None:
    results = launch(table_program(tmp_path / "out"), 3, "--steps", STEPS, "--gradient-codec", "powersgd")
    assert [result.status for result in results] == [2, 2, 2]
    assert results[0].err.startswith("error: --gradient-codec: PowerSGD fails on gloo")
