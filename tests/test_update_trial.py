"""Whether a parameter's update is its own affair."""

from pathlib import Path

import pytest

from stanza_compiler.loader import load
from stanza_compiler.options import Options
from stanza_compiler.update_trial import of_parameters

MODEL = """\
import torch
from torch import nn


def build_model():
    return nn.Linear(3, 2)


def example_inputs():
    return (torch.ones(4, 3),)


def make_optimizer(params):
    optimizer = OPTIMIZER
    HOOK
    return optimizer
"""
CLIP = "optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(params, 1.0) and None)"


@pytest.mark.parametrize(
    ("optimizer", "hook", "told"),
    [
        ("torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01)", "", ""),
        ("torch.optim.AdamW(params)", "", ""),
        ("torch.optim.Adafactor(params)", "", ""),
        ("torch.optim.SGD(params, lr=0.1)", CLIP, "depends on the other parameters"),
        ("torch.optim.SparseAdam(params)", "", "was not tested (RuntimeError: SparseAdam does not support dense"),
    ],
    ids=["sgd", "adamw", "adafactor", "clipped", "sparse"],
)
def test_an_update_that_others_take_part_in_is_told(tmp_path: Path, optimizer: str, hook: str, told: str) -> None:
    (tmp_path / "model.py").write_text(MODEL.replace("OPTIMIZER", optimizer).replace("HOOK", hook))
    with load(Options(str(tmp_path / "model.py"))) as source:
        notes = of_parameters(source)
    assert len(notes) == bool(told)
    assert told in "".join(notes)


def test_the_default_needs_no_trial(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL.partition("def make_optimizer")[0])
    with load(Options(str(tmp_path / "model.py"))) as source:
        assert of_parameters(source) == ()
