"""The whole small language model in one process."""

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

    def forward(self, ids: Tensor) -> Tensor:
        return self.run(bind_inputs(ids))

    def run(self, inputs: dict[str, Tensor]) -> Tensor:
        emb, gain = FcStage.segment_0(self, inputs["ids"])
        h = ConvStage.forward(self, emb, gain)
        return FcStage.segment_2(self, emb, gain, h, inputs["ids"])


def bind_inputs(ids: Tensor) -> dict[str, Tensor]:
    return {"ids": ids}


def build_model() -> WholeModel:
    model = WholeModel()
    weights = Path(__file__).parent / "weights"
    for name in ("conv_stage", "fc_stage"):
        model.load_state_dict(torch.load(weights / f"{name}.pt", weights_only=True), strict=False)
    return model
