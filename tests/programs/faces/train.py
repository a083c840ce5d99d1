"""Trains faces.py; `python train.py --help` tells the options."""

from pathlib import Path

import user_model
from conv_stage import ConvStage
from fc_stage import FcStage
from runtime import Example, Hooks, Program, Segment, main
from whole_model import bind_inputs, build_model

PROGRAM = Program(
    folder=Path(__file__).resolve().parent,
    stages={
        "conv": ConvStage,
        "fc": FcStage,
    },
    segments=(
        Segment("conv", "forward", takes=("x",), gives=("tanh",)),
        Segment("fc", "forward", takes=("tanh",), gives=()),
    ),
    build_model=build_model,
    bind_inputs=bind_inputs,
    hooks=Hooks(
        loss_fn=user_model.loss_fn,
        make_optimizer=user_model.make_optimizer,
        make_dataset=user_model.make_dataset,
    ),
    example_inputs={
        "x": Example("float64", (6,), batch_axis=0),
    },
    example_targets=Example("int64", (), batch_axis=0, low=0, high=102),
)

if __name__ == "__main__":
    main(PROGRAM)
