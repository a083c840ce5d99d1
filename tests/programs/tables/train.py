"""Trains tables.py; `python train.py --help` tells the options."""

from pathlib import Path

import user_model
from conv_stage import ConvStage
from fc_stage import FcStage
from runtime import Example, Hooks, Program, Segment, main
from whole_model import bind_inputs, build_model

PROGRAM = Program(
    folder=Path(__file__).resolve().parent,
    stages={
        "fc": FcStage,
        "conv": ConvStage,
    },
    segments=(
        Segment("fc", "forward", takes=("words",), gives=("bag", "first")),
        Segment("conv", "forward", takes=("bag", "first", "x"), gives=()),
    ),
    build_model=build_model,
    bind_inputs=bind_inputs,
    hooks=Hooks(
        loss_fn=user_model.loss_fn,
        make_optimizer=user_model.make_optimizer,
        make_dataset=user_model.make_dataset,
    ),
    example_inputs={
        "words": Example("int64", (4,), batch_axis=0, low=0, high=39),
        "x": Example("float32", (3,), batch_axis=0),
    },
)

if __name__ == "__main__":
    main(PROGRAM)
