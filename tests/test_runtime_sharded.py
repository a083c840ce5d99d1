"""FC layers whose columns the hosts share, against one-process loops written here by hand."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stanza_compiler.runtime.peers import Peers
from stanza_compiler.runtime.program import Program
from stanza_compiler.runtime.seeds import seed_from
from stanza_compiler.runtime.sharded_weights import load_columns
from tests.launch import build_program, edit, run
from tests.test_runtime_exactness import State, assert_equal, part, small_loop, small_program


@pytest.mark.parametrize(
    ("world_size", "flags", "global_batch"),
    [
        (3, ("--batch-size", 16), 48),
        # ten classes over two hosts, and a last batch of one item: CONV ranks 1 and 2 have none
        (3, ("--fc-workers", 2, "--global-batch-size", 37), 37),
    ],
    ids=["3-hosts", "2-hosts-empty-parts"],
)
def test_sharded_training_equals_one_process(
    tmp_path: Path, world_size: int, flags: tuple[object, ...], global_batch: int
) -> None:
    folder = small_program(tmp_path / "out")
    files = ("--export", tmp_path / "a.pt", "--metrics", tmp_path / "m.jsonl")
    run(folder, world_size, "--placement", "sharded", "--no-shuffle", "--steps", 8, *flags, *files)
    expected, losses = small_loop(global_batch, 8)
    assert_equal(tmp_path / "a.pt", expected)
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == pytest.approx(losses, rel=1e-5)


def faces_weights() -> State:
    generator = torch.Generator().manual_seed(4)
    shapes = {
        "lift.weight": (16, 6),
        "lift.bias": (16,),
        "spare.weight": (2, 3),
        "spare.bias": (2,),
        "layers.0.weight": (25, 16),
        "layers.0.bias": (25,),
        "middle.weight": (20, 25),
        "faces.weight": (103, 20),
        "faces.bias": (103,),
    }
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) * 0.2 for name, shape in shapes.items()}


def faces_program(folder: Path) -> Path:
    weights = faces_weights()
    conv = part(weights, "lift")
    return build_program(
        folder, "faces", weights={"conv_stage": conv, "fc_stage": part(weights, "spare", "layers", "middle", "faces")}
    )


def faces_loop(global_batch: int, steps: int, seed: int = 0) -> State:
    """AdamW, lr 0.01, weight decay 0.01, on items 0, 1, 2, ... of 75; dropout is seeded from (seed, 0, step)."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(75, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(103, (75,), generator=generator)
    w = {name: tensor.clone().requires_grad_() for name, tensor in faces_weights().items()}
    names = [name for name in w if not name.startswith("spare")]
    first = {name: torch.zeros_like(w[name]) for name in names}
    second = {name: torch.zeros_like(w[name]) for name in names}
    position = 0
    for step in range(1, steps + 1):
        now = slice(position, min(position + global_batch, 75))
        position = 0 if now.stop == 75 else now.stop
        torch.manual_seed(seed_from(seed, 0, step))
        h = F.dropout(F.linear(x[now], w["lift.weight"], w["lift.bias"]).tanh(), 0.1)
        h = F.dropout(F.linear(h, w["layers.0.weight"], w["layers.0.bias"]).relu(), 0.25)
        scores = F.linear(F.gelu(F.linear(h, w["middle.weight"])), w["faces.weight"], w["faces.bias"])
        logs = scores.log_softmax(1)
        nll = -logs.gather(1, labels[now].unsqueeze(1)).mean()
        gradients = torch.autograd.grad(0.9 * nll - 0.1 * logs.mean(), [w[name] for name in names])
        with torch.no_grad():
            for name, gradient in zip(names, gradients, strict=True):
                first[name] = 0.9 * first[name] + 0.1 * gradient
                second[name] = 0.999 * second[name] + 0.001 * gradient**2
                scale = (second[name] / (1 - 0.999**step)).sqrt() + 1e-8
                w[name] *= 1 - 0.01 * 0.01
                w[name] -= 0.01 * first[name] / (1 - 0.9**step) / scale
    return {name: tensor.detach() for name, tensor in w.items()}


@pytest.mark.parametrize(
    ("world_size", "flags", "global_batch"),
    [
        (3, (), 24),  # 103 classes: 35 + 34 + 34
        pytest.param(5, ("--global-batch-size", 23), 23, marks=pytest.mark.slow),  # the last batch has 6 items
        # hosts are ranks 0, 2 and 4; ranks 1 and 3 have no columns
        pytest.param(5, ("--fc-workers", 3, "--global-batch-size", 37), 37, marks=pytest.mark.slow),
    ],
    ids=["3-hosts", "5-hosts", "5-ranks-3-hosts"],
)
def test_three_layers_with_dropout_and_uneven_columns_equal_one_process(
    tmp_path: Path, world_size: int, flags: tuple[object, ...], global_batch: int
) -> None:
    folder = faces_program(tmp_path / "out")
    flags = ("--no-shuffle", "--steps", 5, *flags, "--export", tmp_path / "a.pt")
    result = run(folder, world_size, *flags)
    found, expected = torch.load(tmp_path / "a.pt", weights_only=True), faces_loop(global_batch, 5)
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-9, msg=name)
    assert "note:" not in result.out


def test_a_loss_that_takes_all_scores_is_exact_and_said_so(tmp_path: Path) -> None:
    folder = small_program(tmp_path / "out")
    edit(
        folder / "user_model.py",
        "return F.cross_entropy(outputs, targets)",
        "return F.nll_loss(outputs.log_softmax(1), targets)",
    )
    flags = ("--placement", "sharded", "--no-shuffle", "--steps", 4, "--global-batch-size", 37)
    result = run(folder, 3, *flags, "--export", tmp_path / "a.pt")
    assert "note: loss_fn takes all scores (log_softmax), so that every host gathers them" in result.out
    expected, _ = small_loop(37, 4)
    assert_equal(tmp_path / "a.pt", expected)


def test_a_host_holds_its_own_columns_alone(tmp_path: Path) -> None:
    folder = faces_program(tmp_path / "out")
    program = Program(
        folder=folder,
        stages={"fc": face_layers},
        segments=(),
        build_model=lambda: None,
        bind_inputs=dict,
    )
    stage = load_columns(program, {"layers.0": 25, "faces": 103}, Peers(1, (0, 1, 2), None), torch.device("cpu"))
    saved = faces_weights()
    assert torch.equal(stage.get_parameter("layers.0.weight"), saved["layers.0.weight"][9:17])
    assert torch.equal(stage.get_parameter("faces.bias"), saved["faces.bias"][35:69])
    assert sum(parameter.numel() for parameter in stage.parameters()) == 8 * 16 + 8 + 34 * 20 + 34


def face_layers() -> nn.Module:
    layers = {"layers": nn.Sequential(nn.Linear(16, 25)), "faces": nn.Linear(20, 103)}
    return nn.ModuleDict(layers).double()
