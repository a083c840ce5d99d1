"""Programs that begin with an FC segment, against one-process loops written here by hand."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.launch import build_program, edit, launch, run
from tests.test_runtime_exactness import State, assert_equal, part

LENGTH, BATCH, STEPS = 22, 10, 5

# 22 items in tens: the third batch is of 2, so the last CONV rank of three has none, nor has its host of two.
LAYOUTS = pytest.mark.parametrize(
    ("world_size", "flags"),
    [
        (3, ("--conv-workers", 2)),
        (3, ("--placement", "colocated", "--fc-workers", 1)),
        (3, ("--placement", "colocated", "--fc-workers", 2)),
        (5, ("--conv-workers", 3, "--fc-workers", 2)),
    ],
    ids=["2+1", "3-colocated-1-host", "3-colocated-2-hosts", "3+2"],
)


def weights(shapes: dict[str, tuple[int, ...]]) -> State:
    generator = torch.Generator().manual_seed(4)
    return {name: torch.randn(shape, generator=generator) * 0.4 for name, shape in shapes.items()}


def sgd(
    initial: State, loss: Callable[[State, slice], tuple[Tensor, Tensor]], frozen: tuple[str, ...] = ()
) -> tuple[State, list[float]]:
    """SGD with momentum 0.9, lr 0.1, on sum / count of items 0, 1, 2, ...; the losses."""
    w = {name: tensor.clone().requires_grad_(name not in frozen) for name, tensor in initial.items()}
    names = [name for name in w if name not in frozen]
    momentum: State = {}
    losses = []
    position = 0
    for _ in range(STEPS):
        stop = min(position + BATCH, LENGTH)
        total, count = loss(w, slice(position, stop))
        position = 0 if stop == LENGTH else stop
        losses.append((total / count).item())
        gradients = torch.autograd.grad(total / count, [w[name] for name in names])
        with torch.no_grad():
            for name, gradient in zip(names, gradients, strict=True):
                momentum[name] = 0.9 * momentum[name] + gradient if name in momentum else gradient
                w[name] -= 0.1 * momentum[name]
    return {name: tensor.detach() for name, tensor in w.items()}, losses


def tied_weights() -> State:
    return weights(
        {
            "mix.weight": (8, 6, 3),
            "mix.bias": (8,),
            "down.weight": (6, 8),
            "down.bias": (6,),
            "gain": (6,),
            "table.weight": (50, 6),
            "shift.weight": (50, 6),
            "last.weight": (6, 6),
            "last.bias": (6,),
            "head.bias": (50,),
        }
    )


def tied_program(folder: Path) -> Path:
    w = tied_weights()
    conv = part(w, "mix", "down")
    return build_program(
        folder,
        "tied",
        weights={"conv_stage": conv, "fc_stage": {name: tensor for name, tensor in w.items() if name not in conv}},
    )


def tied_loss(w: State, now: slice) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(50, (LENGTH, 7), generator=generator)
    labels = torch.randint(50, (LENGTH, 7), generator=generator)
    labels[torch.rand(LENGTH, 7, generator=generator) < 0.3] = -1
    return tied_sum(w, ids[now], labels[now])


def ragged_loss(w: State, now: slice) -> tuple[Tensor, Tensor]:
    """Items of 3 to 7 tokens, each on its own."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(50, (LENGTH, 7), generator=generator)
    labels = torch.randint(50, (LENGTH, 7), generator=generator)
    labels[torch.rand(LENGTH, 7, generator=generator) < 0.3] = -1
    pairs = [
        tied_sum(w, ids[k : k + 1, : 3 + k % 5], labels[k : k + 1, : 3 + k % 5]) for k in range(now.start, now.stop)
    ]
    return torch.stack([total for total, _ in pairs]).sum(), torch.stack([count for _, count in pairs]).sum()


def tied_sum(w: State, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    emb, gain = w["table.weight"][ids], w["gain"].tanh()
    mixed = F.conv1d(F.pad((emb * gain).transpose(1, 2), (2, 0)), w["mix.weight"], w["mix.bias"]).transpose(1, 2)
    h = F.linear(mixed.tanh(), w["down.weight"], w["down.bias"])
    z = F.linear(h + emb * gain, w["last.weight"], w["last.bias"]) + w["shift.weight"][ids]
    scores = F.linear(z, w["table.weight"], w["head.bias"]) + h.relu().sum(-1, keepdim=True)
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum"), (
        labels != -1
    ).sum()


def train(folder: Path, world_size: int, *flags: object, **environment: str) -> tuple[Path, list[float]]:
    """The exported weights and the losses."""
    exported, metrics = folder.parent / "a.pt", folder.parent / "m.jsonl"
    length = ("--no-shuffle", "--steps", STEPS, "--global-batch-size", BATCH)
    run(folder, world_size, *length, *flags, "--export", exported, "--metrics", metrics, **environment)
    return exported, [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]


def assert_tied(exported: Path, expected: State) -> None:
    assert_equal(exported, {**expected, "head.weight": expected["table.weight"]})


@LAYOUTS
def test_a_table_in_front_that_is_also_the_head_behind_trains_as_in_one_process(
    tmp_path: Path, world_size: int, flags: tuple[object, ...]
) -> None:
    exported, losses = train(tied_program(tmp_path / "out"), world_size, *flags)
    expected, expected_losses = sgd(tied_weights(), tied_loss)
    assert_tied(exported, expected)
    assert losses == pytest.approx(expected_losses, rel=1e-5)


def test_what_a_step_sends_is_sent_once(tmp_path: Path) -> None:
    train(tied_program(tmp_path / "out"), 3, "--conv-workers", 2)
    first = json.loads((tmp_path / "m.jsonl").read_text().splitlines()[0])
    # by hand, for 10 items of 7 tokens: ids and targets of 8 bytes up; emb down and its gradient up, h up and its
    # gradient down, 6 floats a token each; gain to both ranks and its gradient back; a ring of two over the 206
    # parameters of CONV
    assert first["bytes_sent"] == 70 * (8 + 8 + 4 * 6 * 4) + 2 * 2 * 6 * 4 + 2 * 206 * 4


def test_parts_of_different_width_run_one_by_one_in_front_and_behind(tmp_path: Path) -> None:
    exported, _ = train(tied_program(tmp_path / "out"), 3, "--conv-workers", 2, RAGGED="1")
    assert_tied(exported, sgd(tied_weights(), ragged_loss)[0])


def test_of_a_kept_tensor_that_the_plan_does_not_list_nothing_need_be_known(tmp_path: Path) -> None:
    folder = tied_program(tmp_path / "out")
    edit(folder / "fc_stage.py", "self.gain.tanh()\n", "self.gain.tanh(), self.table(ids).flatten()\n")
    edit(folder / "fc_stage.py", "return self.head(", "emb = emb.view(h.shape)\n        return self.head(")
    edit(folder / "train.py", 'gives=("emb", "gain")', 'gives=("emb", "gain", "flat")')
    edit(folder / "train.py", 'takes=("emb", "gain", "h", "ids")', 'takes=("flat", "gain", "h", "ids")')
    exported, _ = train(folder, 3, "--placement", "colocated", "--fc-workers", 1)
    assert_tied(exported, sgd(tied_weights(), tied_loss)[0])


def test_a_host_that_fails_in_front_ends_the_job_with_its_own_error(tmp_path: Path) -> None:
    folder = tied_program(tmp_path / "out")
    edit(
        folder / "fc_stage.py",
        "        return self.table(ids),",
        "        self.runs = getattr(self, 'runs', 0) + 1\n"
        "        if self.runs == 3:  # of the rehearsal, of step 1, of step 2\n"
        "            raise OSError('no table')\n"
        "        return self.table(ids),",
    )
    results = launch(folder, 3, "--steps", 5, "--conv-workers", 2)
    assert [result.status for result in results] == [1, 1, 1]
    lines = [result.err.strip().splitlines()[-1] for result in results]
    assert lines[2] == "error: rank 2 (fc host 0), step 2: OSError: no table"
    assert lines[0].startswith("error: rank 0 (conv 0), step 2: EdgeError: header from rank 2")


@pytest.mark.parametrize("stage", ["conv", "fc"])
def test_what_is_frozen_around_the_cut_stays_as_it_is(tmp_path: Path, stage: str) -> None:
    folder = tied_program(tmp_path / "out")
    frozen = {
        "conv": ("mix.weight", "mix.bias", "down.weight", "down.bias"),
        "fc": ("table.weight", "gain"),
    }[stage]
    last, lines = {
        "conv": ("self.down = nn.Linear(8, 6)", "self.requires_grad_(False)"),
        "fc": (
            "self.head.weight = self.table.weight",
            "self.gain.requires_grad_(False)\n        self.table.requires_grad_(False)",
        ),
    }[stage]
    edit(folder / f"{stage}_stage.py", last, f"{last}\n        {lines}")
    exported, _ = train(folder, 3, "--placement", "colocated", "--fc-workers", 2)
    assert_tied(exported, sgd(tied_weights(), tied_loss, frozen)[0])


def table_weights() -> State:
    return weights(
        {
            "bags.weight": (40, 5),
            "firsts.weight": (40, 4),
            "wide.weight": (16, 12),
            "wide.bias": (16,),
            "narrow.weight": (3, 16),
            "narrow.bias": (3,),
        }
    )


def table_program(folder: Path) -> Path:
    w = table_weights()
    return build_program(
        folder, "tables", weights={"fc_stage": part(w, "bags", "firsts"), "conv_stage": part(w, "wide", "narrow")}
    )


def table_loss(counted: bool) -> Callable[[State, slice], tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(6)
    words = torch.randint(40, (LENGTH, 4), generator=generator)
    x = torch.randn(LENGTH, 3, generator=generator)
    labels = torch.randint(3, (LENGTH,), generator=generator)

    def loss(w: State, now: slice) -> tuple[Tensor, Tensor]:
        bag, first = w["bags.weight"][words[now]].sum(1), w["firsts.weight"][words[now, 0]]
        h = F.linear(torch.cat([bag, first, x[now]], 1), w["wide.weight"], w["wide.bias"]).relu()
        scores = F.linear(h, w["narrow.weight"], w["narrow.bias"])
        ignored = 0 if counted else -1
        total = F.cross_entropy(scores, labels[now], ignore_index=ignored, reduction="sum")
        return total, (labels[now] != ignored).sum()

    return loss


@LAYOUTS
def test_tables_in_front_and_the_loss_on_conv_ranks_train_as_in_one_process(
    tmp_path: Path, world_size: int, flags: tuple[object, ...]
) -> None:
    exported, losses = train(table_program(tmp_path / "out"), world_size, *flags)
    expected, expected_losses = sgd(table_weights(), table_loss(counted=False))
    assert_equal(exported, expected)
    assert losses == pytest.approx(expected_losses, rel=1e-5)


def test_a_counted_loss_on_conv_ranks_is_divided_by_the_count_of_all(tmp_path: Path) -> None:
    exported, losses = train(table_program(tmp_path / "out"), 5, "--conv-workers", 3, "--fc-workers", 2, COUNTED="1")
    expected, expected_losses = sgd(table_weights(), table_loss(counted=True))
    assert_equal(exported, expected)
    assert losses == pytest.approx(expected_losses, rel=1e-5)
