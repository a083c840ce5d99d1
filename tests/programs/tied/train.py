"""Trains tied.py; `python train.py --help` tells the options."""

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
        Segment("fc", "segment_0", takes=("ids",), gives=("emb", "gain")),
        Segment("conv", "forward", takes=("emb", "gain"), gives=("h",)),
        Segment("fc", "segment_2", takes=("emb", "gain", "h", "ids"), gives=()),
    ),
    build_model=build_model,
    bind_inputs=bind_inputs,
    hooks=Hooks(
        loss_fn=user_model.loss_fn,
        make_optimizer=user_model.make_optimizer,
        make_dataset=user_model.make_dataset,
        collate_fn=user_model.collate_fn,
    ),
    example_inputs={
        "ids": Example("int64", (7,), batch_axis=0, low=0, high=49),
    },
)

if __name__ == "__main__":
    main(PROGRAM)
