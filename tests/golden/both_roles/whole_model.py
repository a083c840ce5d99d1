"""The stages of both_roles.py one after the other in one process, with the initial weights."""

from pathlib import Path

import torch
from torch import nn
from conv_stage import ConvStage
from fc_stage import FcStage

WEIGHTS = Path(__file__).resolve().parent / "weights"


def bind_inputs(ids):
    """Name the tensors of a call of the model; what is no tensor is as it was when the model was compiled."""
    return {
        "ids": ids,
    }


class WholeModel(nn.Module):
    """Holds the modules of every stage under their original names and runs the stages' own code on them."""

    def __init__(self) -> None:
        super().__init__()
        _adopt(self, ConvStage())
        _adopt(self, FcStage())
        # Each stage has a copy of its own; here they are one.
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.run(bind_inputs(ids))

    def run(self, values):
        """The model's output for its named input tensors."""
        values = dict(values)
        values["transpose_1"] = ConvStage.forward(self, values["ids"])
        return FcStage.forward(self, values["transpose_1"])


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
    """Let `module` hold what `other` holds; containers that both have become one, of a layer the first one stays."""
    for name, child in other._modules.items():
        own = module._modules.get(name)
        if own is None or (_is_container(own) and not _is_container(child)):
            module._modules[name] = child
        elif _is_container(own):
            _adopt(own, child)
    module._parameters.update(other._parameters)
    module._buffers.update(other._buffers)
    module._non_persistent_buffers_set.update(other._non_persistent_buffers_set)


def _is_container(module: nn.Module) -> bool:
    return type(module).forward is nn.Module.forward
