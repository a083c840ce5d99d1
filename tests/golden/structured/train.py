"""Trains structured.py; `python train.py --help` tells the options."""

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
        Segment("conv", "forward", takes=("batch_image_pixels",), gives=("conv",)),
        Segment("fc", "forward", takes=("batch_tokens", "gate", "extra_offset", "conv"), gives=()),
    ),
    build_model=build_model,
    bind_inputs=bind_inputs,
    example_inputs={
        "batch_image_pixels": Example("float32", (1, 8, 8)),
        "batch_tokens": Example("int64", (7,), low=4, high=48),
        "gate": Example("float32", (6, 8, 8)),
        "extra_offset": Example("float32", (5,)),
    },
)

if __name__ == "__main__":
    main(PROGRAM)
