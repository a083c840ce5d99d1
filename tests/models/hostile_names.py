"""Names that would break out of their quotes, shadow what generated code uses, or hide behind methods of torch's."""

import torch
from torch import nn

NAMES = [
    'say "hi"', "it's", "back\\slash", "\\N", "\\", "new\nline", "carriage\rreturn", "tab\tkey", "nul\0", "\u2028",
    '"""', '""" + spring() + """', "# no comment", "{{ x }}", "{% raw %}", "{x}", "%s", "$", "12", "_", " ", "__x",
    "\ufb01", "\u00fcn\u00efc\u00f6de", "\N{PARTY POPPER}", "\ud800", "None", "class", "self", "torch", "nn", "F", "x",
    "operator", "math", "user_model", "values", "keys", "items", "super", "print", "run", "segment_0", "ConvStage",
    "bind_inputs", "model", "a" * 200,
]  # fmt: skip


class Hostile(nn.Module):
    """Modules, parameters and buffers of all these names, in the root and in containers, and a dict of them out."""

    def __init__(self) -> None:
        super().__init__()
        self.bare = nn.Module()
        self.bare.inner = nn.Module()
        for index, name in enumerate(NAMES):
            if index % 2:
                self.add_module(name, nn.Conv1d(4, 4, 1))
                self.bare.register_parameter(name, nn.Parameter(torch.full((4, 1), 1.0 + index / 100)))
                self.bare.inner.register_buffer(name, torch.full((4, 1), 1.0 - index / 100), persistent=False)
            else:
                self.bare.add_module(name, nn.Sequential(nn.Conv1d(4, 4, 1), nn.Tanh()))
                self.register_buffer(name, torch.full((4, 1), 1.0 + index / 50))
                self.bare.inner.register_parameter(name, nn.Parameter(torch.full((4, 1), 1.0)))
        self.add_module("the cut\\'\"", nn.Conv1d(4, 4, 1))
        self.fc = nn.ModuleDict({'say "hi"\n': nn.Linear(24, 400), "\\": nn.Linear(400, 5)})

    def forward(self, batch):
        x = batch['in "quotes"\n']
        for index, name in enumerate(NAMES):
            if index % 2:
                x = x + self._modules[name](x) * getattr(self.bare, name) * getattr(self.bare.inner, name)
            else:
                x = x + self.bare._modules[name](x) * getattr(self, name) * getattr(self.bare.inner, name)
            x = x / 2
        x = self._modules["the cut\\'\""](x)
        x = self.fc['say "hi"\n'](x.flatten(1))
        return {'out "quoted"\\': self.fc["\\"](x.relu()), "\n": x.mean(1)}


def build_model():
    return Hostile()


def example_inputs():
    return ({'in "quotes"\n': torch.randn(4, 4, 6)},)
