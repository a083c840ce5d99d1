"""A small CNN with a big classifier and 75 items: nothing divides anything."""

import torch
from torch import nn
from torch.nn import functional as F


class SmallCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Linear(144, 200), nn.ReLU(), nn.Linear(200, 10))

    def forward(self, x):
        x = self.features(x)
        return self.classifier(torch.flatten(x, 1))


def build_model():
    return SmallCnn()


def example_inputs():
    return (torch.randn(4, 3, 12, 12),)


def example_targets():
    return torch.arange(4)


def loss_fn(outputs, targets):
    return F.cross_entropy(outputs, targets)


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


class Items:
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.images = torch.randn(75, 3, 12, 12, generator=generator)
        self.labels = torch.randint(10, (75,), generator=generator)

    def __len__(self):
        return 75

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def make_dataset():
    return Items()
