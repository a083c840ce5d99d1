"""The whole small click model in one process."""

from pathlib import Path

import torch
from conv_stage import ConvStage
from fc_stage import FcStage
from torch import Tensor, nn


class WholeModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for stage in (FcStage(), ConvStage()):
            for name, module in stage.named_children():
                self.add_module(name, module)

    def forward(self, words: Tensor, x: Tensor) -> Tensor:
        return self.run(bind_inputs(words, x))

    def run(self, inputs: dict[str, Tensor]) -> Tensor:
        bag, first = FcStage.forward(self, inputs["words"])
        return ConvStage.forward(self, bag, first, inputs["x"])


def bind_inputs(words: Tensor, x: Tensor) -> dict[str, Tensor]:
    return {"words": words, "x": x}


def build_model() -> WholeModel:
    model = WholeModel()
    weights = Path(__file__).parent / "weights"
    for name in ("conv_stage", "fc_stage"):
        model.load_state_dict(torch.load(weights / f"{name}.pt", weights_only=True), strict=False)
    return model
