"""Timing every op on this machine."""

import copy
import random

import numpy as np
import torch
from torch import nn

from stanza_compiler.opgraph import OpGraph
from stanza_compiler.passes.measure import measure
from stanza_compiler.passes.profile import profile
from stanza_compiler.passes.trace import trace
from tests.source_of import source_of


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Conv2d(3, 4, 3).requires_grad_(False)
        self.conv = nn.Conv2d(4, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout()
        self.fc = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.relu(self.norm(self.conv(self.frozen(x))))
        return self.fc(self.drop(h.mean((2, 3)).view(x.size(0), 8)))


def measured(model: nn.Module) -> tuple[OpGraph, OpGraph]:
    """The graph before and after."""
    source = source_of(model, torch.randn(2, 3, 9, 9))
    traced = trace(source, verify=False)
    graph = profile(source, traced).graph
    return graph, measure(source, traced, graph)


def test_every_op_has_a_forward_time_and_those_with_gradients_a_backward_time() -> None:
    _, graph = measured(Small())
    assert all(op.forward_s is not None and op.forward_s > 0 for op in graph.ops)
    assert all(op.backward_s is not None and op.backward_s >= 0 for op in graph.ops)
    assert {op.name for op in graph.ops if op.backward_s == 0} == {"frozen", "size"}


def test_nothing_but_the_times_changes() -> None:
    before, after = measured(Small())
    assert [op.name for op in after.ops] == [op.name for op in before.ops]
    assert str(after) == str(before)
    assert (after.parameters, after.inputs, after.outputs) == (before.parameters, before.inputs, before.outputs)
    assert all(op.forward_s is None for op in before.ops)


def test_the_users_model_and_the_random_numbers_are_as_before() -> None:
    model = Small()
    model.norm.eval()
    model.fc.weight.grad = torch.full((2, 8), 7.0)
    state = copy.deepcopy(model.state_dict())
    generators = torch.random.get_rng_state(), random.getstate(), str(np.random.get_state())
    example = torch.randn(2, 3, 9, 9)
    torch.random.set_rng_state(generators[0])
    source = source_of(model, example)
    kept = example.clone()
    traced = trace(source, verify=False)
    measure(source, traced, profile(source, traced).graph)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert (model.training, model.norm.training) == (True, False)
    assert model.fc.weight.grad.tolist() == [[7.0] * 8] * 2
    assert all(parameter.grad is None for name, parameter in model.named_parameters() if name != "fc.weight")
    assert torch.equal(torch.random.get_rng_state(), generators[0])
    assert (random.getstate(), str(np.random.get_state())) == generators[1:]
    assert torch.equal(example, kept)


def test_a_layer_with_a_hundred_times_the_work_takes_longer() -> None:
    model = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 10))
    source = source_of(model, torch.randn(64, 1000))
    traced = trace(source, verify=False)
    large, small = measure(source, traced, profile(source, traced).graph).ops
    assert large.forward_s is not None
    assert small.forward_s is not None
    assert large.forward_s > small.forward_s


def test_an_integer_input_and_a_tuple_of_outputs_are_timed() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.LSTM(4, 3))
    source = source_of(model, torch.tensor([[1, 2], [3, 4]]))
    traced = trace(source, verify=False)
    graph = measure(source, traced, profile(source, traced).graph)
    assert all(op.forward_s and op.backward_s for op in graph.ops)
