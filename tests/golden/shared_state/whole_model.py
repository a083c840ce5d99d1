"""The stages of shared_state.py one after the other in one process, with the initial weights."""

from pathlib import Path

import torch
from torch import nn
from conv_stage import ConvStage
from fc_stage import FcStage

WEIGHTS = Path(__file__).resolve().parent / "weights"


def bind_inputs(x, late):
    """Name the tensors of a call of the model; what is no tensor is as it was when the model was compiled."""
    return {
        "x": x,
        "late": late,
    }


class WholeModel(nn.Module):
    """Holds the modules of every stage under their original names and runs the stages' own code on them."""

    def __init__(self) -> None:
        super().__init__()
        _adopt(self, ConvStage())
        _adopt(self, FcStage())

    def forward(self, x, late):
        return self.run(bind_inputs(x, late))

    def run(self, values):
        """The model's output for its named input tensors."""
        values = dict(values)
        values["flatten"] = ConvStage.forward(self, values["x"])
        return FcStage.forward(self, values["late"], values["flatten"])


def build_model() -> WholeModel:
    """The whole model with the weights that it was compiled with."""
    model = WholeModel()
    tensors = {}
    tensors |= torch.load(WEIGHTS / "conv_stage.pt", weights_only=True)
    tensors |= torch.load(WEIGHTS / "fc_stage.pt", weights_only=True)
    state = model.state_dict(keep_vars=True)
    buffers = dict(model.named_buffers())
    with torch.no_grad():
        for name, tensor in tensors.items():
            (state[name] if name in state else buffers[name]).copy_(tensor)
    return model


def _adopt(module: nn.Module, other: nn.Module) -> None:
    """Let `module` hold what `other` holds; containers that both have become one."""
    for name, child in other._modules.items():
        if name in module._modules:
            _adopt(module._modules[name], child)
        else:
            module._modules[name] = child
    module._parameters.update(other._parameters)
    module._buffers.update(other._buffers)
    module._non_persistent_buffers_set.update(other._non_persistent_buffers_set)
