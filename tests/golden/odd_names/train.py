"""Trains odd_names.py; `python train.py --help` tells the options."""

from pathlib import Path

from conv_stage import ConvStage
from fc_stage import FcStage
from runtime import Example, Program, Segment, main
from whole_model import bind_inputs, build_model

PROGRAM = Program(
    folder=Path(__file__).resolve().parent,
    stages={
        "conv": ConvStage,
        "fc": FcStage,
    },
    segments=(
        Segment("conv", "forward", takes=("input_torch",), gives=("seq.été",)),
        Segment("fc", "forward", takes=("seq.été",), gives=()),
    ),
    build_model=build_model,
    bind_inputs=bind_inputs,
    example_inputs={
        "input_torch": Example("float32", (3, 8, 8)),
    },
)

if __name__ == "__main__":
    main(PROGRAM)
