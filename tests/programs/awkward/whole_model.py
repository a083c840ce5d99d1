"""The whole awkward model in one process."""

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
            for name, parameter in stage.named_parameters(recurse=False):
                self.register_parameter(name, parameter)

    def forward(self, x: Tensor, ids: Tensor) -> dict[str, object]:
        return self.run(bind_inputs(x, ids))

    def run(self, inputs: dict[str, Tensor]) -> dict[str, object]:
        h, kind, gate, sequence, pull = ConvStage.forward(self, inputs["x"])
        return FcStage.forward(self, h, kind, gate, sequence, inputs["ids"], pull)


def bind_inputs(x: Tensor, ids: Tensor) -> dict[str, Tensor]:
    return {"x": x, "ids": ids}


def build_model() -> WholeModel:
    model = WholeModel()
    weights = Path(__file__).parent / "weights"
    for name in ("conv_stage", "fc_stage"):
        model.load_state_dict(torch.load(weights / f"{name}.pt", weights_only=True), strict=False)
    return model
