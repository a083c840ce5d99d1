"""The compute-heavy stage of odd_names.py: 4 ops, 808 parameters, 101,376 forward FLOPs a sample."""

from torch import nn


class ConvStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seq = nn.Module()
        self.seq.add_module("class", nn.Conv2d(3, 8, kernel_size=3, padding=1))
        self.seq.add_module('q"uote', nn.ReLU())
        self.seq.add_module("back\\slash {} '''", nn.Conv2d(8, 8, kernel_size=3, padding=1, padding_mode="circular"))
        self.seq.été = nn.Flatten()

    def forward(self, x):
        """Take x: f32[B, 3, 8, 8]; give seq.été f32[B, 512]."""
        x = self.seq.get_submodule("class")(x)                        # odd_names.py:27
        x = self.seq.get_submodule('q"uote')(x)
        x = self.seq.get_submodule("back\\slash {} '''")(x)
        return self.seq.été(x)
