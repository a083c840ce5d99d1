"""The parameter-heavy stage of shared_state.py: 10 ops, 115,744 parameters, 345,600 forward FLOPs a sample."""

import torch
from torch import nn
from torch.nn import functional as F


class FcStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.empty(24))
        self.act = nn.ReLU()
        self.steps = nn.ModuleDict({"1": nn.Dropout(p=0.25)})
        self.unused = nn.Linear(3, 3)
        self.wide = nn.Linear(144, 400)
        self.narrow = nn.Linear(400, 144)
        self.tied = nn.Linear(400, 144, bias=False)
        self.steps["0"] = self.act
        self.tied.weight = self.narrow.weight
        self.narrow.get_parameter("bias").requires_grad_(False)

    def forward(self, late, flatten):
        """Take late: f32[B, 144], flatten: f32[B, 144]; give the model's output."""
        flatten = self.wide(flatten)                                  # shared_state.py:30
        flatten = self.act(flatten)
        flatten = self.steps["1"](flatten)
        narrow = self.narrow(flatten)                                 # shared_state.py:31
        flatten = self.tied(flatten)
        narrow = narrow + flatten
        narrow = narrow + late
        narrow = narrow.view(-1, 6, 24)                               # shared_state.py:32
        narrow = narrow * self.table
        return F.log_softmax(narrow, dim=-1)
