"""examples/dlrm.py with smaller tables, 22 clicks and momentum; needs that file beside it."""

import dlrm
import torch
from dlrm import loss_fn as loss_fn

dlrm.ROWS = 3000
DTYPE = torch.float32


def build_model():
    return dlrm.build_model().to(DTYPE)


def example_inputs():
    dense, rows = dlrm.example_inputs()
    return dense.to(DTYPE), rows


def example_targets():
    return dlrm.example_targets().to(DTYPE)


def make_optimizer(params):
    return torch.optim.SGD(params, lr=0.02, momentum=0.9)


class Clicks:
    def __len__(self) -> int:
        return 22

    def __getitem__(self, number):
        dense, rows, clicked = dlrm.click(number)
        return (dense.to(DTYPE), rows), clicked.to(DTYPE)


def make_dataset():
    return Clicks()
