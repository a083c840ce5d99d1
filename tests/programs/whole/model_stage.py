"""The whole small CNN, for data-parallel training."""

from conv_stage import ConvStage
from fc_stage import FcStage
from torch import Tensor, nn


class ModelStage(nn.Module):
    """x f32[B, 3, 12, 12] -> scores f32[B, 10]"""

    def __init__(self) -> None:
        super().__init__()
        for stage in (ConvStage(), FcStage()):
            for name, module in stage.named_children():
                self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return FcStage.forward(self, ConvStage.forward(self, x))
