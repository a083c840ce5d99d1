"""Late gradients that go into the weights as they are computed, against one-process loops written by hand."""

from pathlib import Path

import pytest
import torch

from tests.launch import edit, run
from tests.test_orders import STEPS, State, compiled, loss_of_two_ends, one_process
from tests.test_runtime_exactness import assert_equal, small_loop, small_program
from tests.test_runtime_micro_batches import cut

# Tells after each update how many parameters of the optimiser have a gradient.
WATCH = """
from torch.optim.optimizer import register_optimizer_step_post_hook


def tell(optimizer, *_):
    print("gradients", sum(each.grad is not None for group in optimizer.param_groups for each in group["params"]))


register_optimizer_step_post_hook(tell)
"""


@pytest.mark.parametrize(
    ("flags", "micro_batches", "is_written"),
    [
        (("--placement", "colocated", "--fc-workers", 1, "--global-batch-size", 37), 1, False),
        (("--placement", "colocated", "--fc-workers", 1, "--global-batch-size", 37), 2, False),
        (("--placement", "sharded", "--global-batch-size", 37), 1, False),
        # their sum needs them
        (("--placement", "colocated", "--fc-workers", 2, "--global-batch-size", 37), 1, True),
    ],
    ids=["1 host", "1 host, 2 pieces", "sharded", "2 hosts"],
)
def test_training_with_plain_sgd_equals_one_process(
    tmp_path: Path, flags: tuple[object, ...], micro_batches: int, *, is_written: bool
) -> None:
    folder = cut(small_program(tmp_path / "out"), micro_batches)
    edit(folder / "user_model.py", ", momentum=0.9, weight_decay=1e-3", "")
    with (folder / "user_model.py").open("a") as file:
        file.write(WATCH)
    result = run(folder, 3, "--no-shuffle", "--steps", 8, *flags, "--export", tmp_path / "a.pt")
    assert_equal(tmp_path / "a.pt", small_loop(37, 8, momentum=0.0, weight_decay=0.0)[0])
    assert (result.out.count("gradients 0\n") == 0) == is_written, result.out


@pytest.mark.parametrize("placement", ["dedicated", "colocated"])
def test_a_table_at_both_ends_is_changed_once_nobody_reads_it(models: Path, tmp_path: Path, placement: str) -> None:
    (tmp_path / "two_ends.py").write_text((models / "two_ends.py").read_text().replace(", momentum=0.9", ""))
    compiled(tmp_path / "two_ends.py", tmp_path / "out")
    workers = ("--conv-workers", 2) if placement == "dedicated" else ("--fc-workers", 1)
    flags = ("--placement", placement, *workers, "--global-batch-size", 12)
    run(tmp_path / "out", 3, "--no-shuffle", "--steps", STEPS, "--export", tmp_path / "trained.pt", *flags)
    weights: State = {}
    for stage in ("conv_stage", "fc_stage"):
        weights |= torch.load(tmp_path / "out" / "weights" / f"{stage}.pt", weights_only=True)
    weights.pop("head.weight", None)  # the table's
    user: dict[str, object] = {}
    exec((tmp_path / "two_ends.py").read_text(), user)
    expected = one_process(weights, user["make_dataset"](), loss_of_two_ends, 0.0, 12)  # type: ignore[operator]
    expected["head.weight"] = expected["table.weight"]
    assert_equal(tmp_path / "trained.pt", expected)
