"""Parameters of the model itself: one matrix multiplies before a convolution and, transposed, behind it."""

import torch
from torch import nn

WIDTH, OUTPUTS = 48, 400


class SharedMatrix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mm = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.1)
        self.wide = nn.Parameter(torch.randn(WIDTH, OUTPUTS) * 0.1)
        self.scale = nn.Parameter(torch.ones(()))
        self.conv = nn.Conv1d(1, 4, 5, padding=2)

    def forward(self, x):
        h = torch.relu(x @ self.mm)
        h = self.conv(h.unsqueeze(1)).mean(1)
        h = torch.mm(h, self.mm.t()) * self.scale
        return torch.addmm(h[:, :1].expand(-1, OUTPUTS), h, self.wide)


def build_model():
    return SharedMatrix()


def example_inputs():
    return (torch.randn(6, WIDTH),)


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)


class Items:
    """The loss is the mean square of the output: targets are not looked at."""

    def __init__(self) -> None:
        self.x = torch.randn(22, WIDTH, generator=torch.Generator().manual_seed(5))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], 0


def make_dataset():
    return Items()
