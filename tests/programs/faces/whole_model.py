"""The whole classifier in one process."""

from pathlib import Path

import torch
from conv_stage import ConvStage
from fc_stage import FcStage
from torch import Tensor, nn


class WholeModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for stage in (ConvStage(), FcStage()):
            for name, module in stage.named_children():
                self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(bind_inputs(x))

    def run(self, inputs: dict[str, Tensor]) -> Tensor:
        return FcStage.forward(self, ConvStage.forward(self, inputs["x"]))


def bind_inputs(x: Tensor) -> dict[str, Tensor]:
    return {"x": x}


def build_model() -> WholeModel:
    model = WholeModel()
    weights = Path(__file__).parent / "weights"
    for name in ("conv_stage", "fc_stage"):
        model.load_state_dict(torch.load(weights / f"{name}.pt", weights_only=True), strict=False)
    return model
