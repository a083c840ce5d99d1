"""Trains both_roles.py; `python train.py --help` tells the options."""

from pathlib import Path

from conv_stage import ConvStage
from fc_stage import FcStage
from runtime import Example, Program, Segment, SharedParameter, main
from whole_model import bind_inputs, build_model

PROGRAM = Program(
    folder=Path(__file__).resolve().parent,
    stages={
        "conv": ConvStage,
        "fc": FcStage,
    },
    segments=(
        Segment("conv", "forward", takes=("ids",), gives=("transpose_1",)),
        Segment("fc", "forward", takes=("transpose_1",), gives=()),
    ),
    shared=(
        SharedParameter("table.weight", conv="table.weight", fc="head.weight"),
        SharedParameter("mix.weight", conv="mix.weight", fc="mix.weight"),
        SharedParameter("mix.bias", conv="mix.bias", fc="mix.bias"),
    ),
    build_model=build_model,
    bind_inputs=bind_inputs,
    example_inputs={
        "ids": Example("int64", (5,), low=0, high=58),
    },
)

if __name__ == "__main__":
    main(PROGRAM)
