"""Separated, data-parallel and single-process training against one-process loops written here by hand."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.launch import build_program, edit, run

State = dict[str, Tensor]


def small_weights() -> State:
    generator = torch.Generator().manual_seed(1)
    shapes = {
        "conv1.weight": (8, 3, 3, 3),
        "conv1.bias": (8,),
        "conv2.weight": (16, 8, 3, 3),
        "conv2.bias": (16,),
        "unused.weight": (2, 2),
        "unused.bias": (2,),
        "fc1.weight": (32, 144),
        "fc1.bias": (32,),
        "fc2.weight": (10, 32),
        "fc2.bias": (10,),
    }
    return {name: torch.randn(shape, generator=generator) * 0.1 for name, shape in shapes.items()}


def part(state: State, *prefixes: str) -> State:
    return {name: tensor for name, tensor in state.items() if name.startswith(prefixes)}


def small_program(folder: Path, *names: str) -> Path:
    weights = small_weights()
    return build_program(
        folder,
        *(names or ("small_cnn",)),
        weights={
            "conv_stage": part(weights, "conv", "unused"),
            "fc_stage": part(weights, "fc"),
            "model_stage": weights,
        },
    )


def small_forward(w: State, x: Tensor) -> Tensor:
    h = F.max_pool2d(F.conv2d(x, w["conv1.weight"], w["conv1.bias"], padding=1).relu(), 2)
    h = F.max_pool2d(F.conv2d(h, w["conv2.weight"], w["conv2.bias"], padding=1).relu(), 2).flatten(1)
    h = F.linear(h, w["fc1.weight"], w["fc1.bias"]).relu()
    return F.linear(h, w["fc2.weight"], w["fc2.bias"])


def small_loop(
    global_batch: int,
    steps: int,
    trained: tuple[str, ...] = ("conv", "fc"),
    *,
    momentum: float = 0.9,
    weight_decay: float = 1e-3,
) -> tuple[State, list[float]]:
    """SGD with lr 0.05 halved every 3 steps, items 0, 1, 2, ... of 75."""
    generator = torch.Generator().manual_seed(7)
    images = torch.randn(75, 3, 12, 12, generator=generator)
    labels = torch.randint(10, (75,), generator=generator)
    w = {name: tensor.clone().requires_grad_(name.startswith(trained)) for name, tensor in small_weights().items()}
    velocity: State = {}
    losses = []
    position = 0
    for step in range(steps):
        stop = min(position + global_batch, 75)
        loss = F.cross_entropy(small_forward(w, images[position:stop]), labels[position:stop])
        losses.append(loss.item())
        position = 0 if stop == 75 else stop
        names = [name for name in w if name.startswith(trained)]
        gradients = torch.autograd.grad(loss, [w[name] for name in names])
        with torch.no_grad():
            for name, gradient in zip(names, gradients, strict=True):
                change = gradient + weight_decay * w[name]
                velocity[name] = momentum * velocity[name] + change if name in velocity else change
                w[name] -= 0.05 * 0.5 ** (step // 3) * velocity[name]
    return {name: tensor.detach() for name, tensor in w.items()}, losses


def assert_equal(exported: Path, expected: State) -> None:
    found = torch.load(exported, weights_only=True)
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        excess = (found[name] - tensor).abs() - (1e-6 + 1e-5 * tensor.abs())
        assert excess.max() <= 0, f"{name} is off by {(found[name] - tensor).abs().max():.3g}"


@pytest.mark.parametrize(
    ("world_size", "flags", "global_batch"),
    [
        (3, ("--batch-size", 16), 32),
        (5, ("--batch-size", 8, "--fc-workers", 2), 24),
        (3, ("--placement", "colocated", "--fc-workers", 1), 48),
        # the last batch of an epoch is a single item: CONV ranks 1 and 2 have none, nor has host 1 (rank 2)
        (3, ("--placement", "colocated", "--fc-workers", 2, "--global-batch-size", 37), 37),
    ],
    ids=["2+1", "3+2", "3-colocated-1-host", "3-colocated-2-hosts-empty-parts"],
)
def test_separated_training_equals_one_process(
    tmp_path: Path, world_size: int, flags: tuple[object, ...], global_batch: int
) -> None:
    folder = small_program(tmp_path / "out")
    files = ("--export", tmp_path / "a.pt", "--metrics", tmp_path / "m.jsonl")
    result = run(folder, world_size, "--no-shuffle", "--steps", 8, *flags, *files)
    expected, losses = small_loop(global_batch, 8)
    assert_equal(tmp_path / "a.pt", expected)
    assert list(torch.load(tmp_path / "a.pt")) == list(expected)
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert [line["loss"] for line in lines] == pytest.approx(losses, rel=1e-5)
    assert "step 8  loss" in result.out
    assert "accuracy" in result.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt", "m.jsonl", "out"]
    assert {"conv_forward_s", "up_s", "fc_forward_s", "fc_backward_s", "down_s", "conv_backward_s"} <= set(
        lines[0]["times"]
    )
    if global_batch == 32:
        # by hand: 2 x 16 x 144 floats up, as many down, 2 x 16 labels of 8 bytes, a ring of 2 over the 1,392 CONV
        # parameters in use
        assert lines[0]["bytes_sent"] == 2 * 16 * 144 * 4 * 2 + 2 * 16 * 8 + 2 * 1392 * 4


def test_data_parallel_training_equals_one_process_with_uneven_and_empty_parts(tmp_path: Path) -> None:
    folder = small_program(tmp_path / "out", "small_cnn", "whole")
    run(folder, 3, "--no-shuffle", "--steps", 8, "--global-batch-size", 37, "--export", tmp_path / "a.pt")
    expected, _ = small_loop(37, 8)
    assert_equal(tmp_path / "a.pt", expected)


def test_single_process_equals_the_hand_written_loop_on_the_plans_global_batch(tmp_path: Path) -> None:
    folder = small_program(tmp_path / "out")
    run(folder, 1, "--single-process", "--no-shuffle", "--epochs", 2, "--export", tmp_path / "a.pt")
    expected, _ = small_loop(32, 6)
    assert_equal(tmp_path / "a.pt", expected)


@pytest.mark.parametrize(
    ("frozen", "flags"),
    [("conv", ("--conv-workers", 2)), ("fc", ("--placement", "colocated", "--fc-workers", 2))],
)
def test_a_stage_without_trainable_parameters_stays_as_it_is(tmp_path: Path, frozen: str, flags: tuple[object]) -> None:
    folder = small_program(tmp_path / "out")
    last = {"conv": "self.unused = nn.Linear(2, 2)", "fc": "self.fc2 = nn.Linear(32, 10)"}[frozen]
    edit(folder / f"{frozen}_stage.py", last, f"{last}\n        self.requires_grad_(False)")
    run(folder, 3, "--no-shuffle", "--steps", 4, "--global-batch-size", 37, *flags, "--export", tmp_path / "a.pt")
    expected, _ = small_loop(37, 4, trained=("fc",) if frozen == "conv" else ("conv",))
    assert_equal(tmp_path / "a.pt", expected)


def awkward_weights() -> State:
    generator = torch.Generator().manual_seed(2)
    shapes = {
        "gate": (8,),
        "drag": (6,),
        "lift.weight": (8, 6),
        "lift.bias": (8,),
        "steps.weight": (12, 6),
        "steps.bias": (12,),
        "kinds.weight": (8, 8),
        "names.weight": (20, 8),
        "head.weight": (5, 12),
        "head.bias": (5,),
    }
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


def awkward_loop(global_batch: int, steps: int, pulls: bool) -> State:
    """SGD, lr 0.1 and 0.02 for biases, on the sum over labelled items over their number."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(22, 6, generator=generator)
    ids = torch.randint(20, (22,), generator=generator)
    labels = torch.randint(5, (22,), generator=generator)
    labels[::3] = -1
    w = {name: tensor.clone().requires_grad_() for name, tensor in awkward_weights().items()}
    position = 0
    for _ in range(steps):
        now = slice(position, min(position + global_batch, 22))
        position = 0 if now.stop == 22 else now.stop
        h = F.linear(x[now], w["lift.weight"], w["lift.bias"]).tanh()
        long = F.linear(x[now], w["steps.weight"], w["steps.bias"]).view(-1, 3, 4).sum(1)
        mixed = h * w["gate"].sigmoid() + w["kinds.weight"][h.argmax(1)] + w["names.weight"][ids[now]]
        scores = F.linear(torch.cat([mixed, long], 1), w["head.weight"], w["head.bias"])
        total = F.cross_entropy(scores, labels[now], ignore_index=-1, reduction="sum")
        total = total + (scores[:, :2] * x[now, :2]).sum()
        if pulls:
            total = total + 0.1 * (x[now] @ w["drag"]).square().sum()
        names = [name for name in w if pulls or name != "drag"]
        gradients = torch.autograd.grad(total / (labels[now] != -1).sum(), [w[name] for name in names])
        with torch.no_grad():
            for name, gradient in zip(names, gradients, strict=True):
                w[name] -= (0.02 if name.endswith("bias") else 0.1) * gradient
    return {name: tensor.detach() for name, tensor in w.items()}


def awkward_program(folder: Path) -> Path:
    weights = awkward_weights()
    conv = part(weights, "gate", "drag", "lift", "steps")
    return build_program(
        folder, "awkward", weights={"conv_stage": conv, "fc_stage": part(weights, "kinds", "names", "head")}
    )


def test_boundary_tensors_of_every_kind_and_a_counted_loss_add_up_over_two_hosts(tmp_path: Path) -> None:
    folder = awkward_program(tmp_path / "out")
    # 22 items in tens: the short batch of 2 leaves CONV rank 2, so all of host 1, without items
    flags = ("--no-shuffle", "--steps", 7, "--global-batch-size", 10)
    run(folder, 5, *flags, "--export", tmp_path / "a.pt")
    assert_equal(tmp_path / "a.pt", awkward_loop(10, 7, pulls=True))


def test_parts_are_put_together_where_no_per_rank_tensor_forbids_it(tmp_path: Path) -> None:
    folder = awkward_program(tmp_path / "out")
    edit(folder / "conv_stage.py", "sequence, pull\n", "sequence\n")
    edit(folder / "train.py", '"sequence", "pull")', '"sequence")')
    edit(folder / "train.py", '"ids", "pull")', '"ids")')
    flags = ("--no-shuffle", "--steps", 7, "--global-batch-size", 10, "--placement", "colocated")
    run(folder, 3, *flags, "--fc-workers", 2, "--export", tmp_path / "a.pt")
    assert_equal(tmp_path / "a.pt", awkward_loop(10, 7, pulls=False))


def test_layouts_shuffle_alike(tmp_path: Path) -> None:
    folder = small_program(tmp_path / "out")
    flags = ("--steps", 5, "--seed", 3, "--global-batch-size", 30)
    run(folder, 2, *flags, "--placement", "colocated", "--export", tmp_path / "a.pt")
    run(folder, 1, *flags, "--export", tmp_path / "b.pt")
    assert_equal(tmp_path / "a.pt", torch.load(tmp_path / "b.pt", weights_only=True))
    ordered, _ = small_loop(30, 5)
    assert not torch.equal(torch.load(tmp_path / "b.pt")["fc2.bias"], ordered["fc2.bias"])


LIVE = """
import gc

from torch.optim.optimizer import register_optimizer_step_post_hook


def tell(*_):
    gc.collect()
    print("live", sum(torch.is_tensor(each) for each in gc.get_objects()))


register_optimizer_step_post_hook(tell)
"""


@pytest.mark.parametrize("placement", ["colocated", "sharded"])
def test_a_step_leaves_no_tensor_behind(tmp_path: Path, placement: str) -> None:
    folder = small_program(tmp_path / "out")
    with (folder / "user_model.py").open("a") as file:
        file.write(LIVE)
    flags = ("--placement", placement, "--fc-workers", 1 if placement == "colocated" else 2)
    result = run(folder, 2, "--no-shuffle", "--steps", 8, "--global-batch-size", 25, *flags)
    counts = [int(line.split()[1]) for line in result.out.splitlines() if line.startswith("live")]
    assert len(counts) >= 8
    # two updates a step on a rank of both roles; the last step loads no batch for the next one
    assert counts[-4:-2] == counts[-6:-4] == counts[-8:-6]
