"""Tensors without data that are in all else like those with it."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from stanza_compiler.call_key import storage_id
from stanza_compiler.fakes import Fakes


def _fakes() -> Fakes:
    return Fakes(FakeTensorMode(allow_non_fake_inputs=True))


@pytest.mark.parametrize("tensor", [torch.ones(2, 3).t(), torch.ones(2, dtype=torch.int64), torch.ones(())])
def test_a_fake_has_the_sizes_strides_dtype_and_device_of_its_model(tensor: torch.Tensor) -> None:
    fake = _fakes().like(tensor)
    assert isinstance(fake, FakeTensor)
    assert (fake.shape, fake.stride(), fake.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert (fake.device, fake.requires_grad) == (tensor.device, False)


def test_every_fake_has_memory_of_its_own() -> None:
    fakes, tensor = _fakes(), torch.ones(2)
    one, other = fakes.like(tensor), fakes.like(tensor)
    assert storage_id(one) != storage_id(other)


def test_a_computed_fake_that_requires_a_gradient_may_be_written_in_place() -> None:
    fakes = _fakes()
    made = fakes.computed(torch.ones(2, 3, requires_grad=True))
    assert (made.requires_grad, made.is_leaf) == (True, False)
    with fakes.mode:
        assert made.relu_().shape == (2, 3)
    assert not fakes.computed(torch.ones(2)).requires_grad


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.layer.weight
        self.tied.bias.requires_grad_(False)
        whole = torch.ones(4, 3)
        self.register_buffer("top", whole[:2])
        self.register_buffer("rest", whole[2:])
        self.plain = torch.ones(5)


def test_a_copy_holds_no_data_and_keeps_ties_views_flags_and_kinds() -> None:
    model = Odd()
    copy = _fakes().copy(model)
    assert isinstance(copy, Odd)
    tensors = [*copy.parameters(), *copy.buffers(), copy.plain]
    assert all(isinstance(tensor, FakeTensor) for tensor in tensors)
    assert copy.tied.weight is copy.layer.weight
    assert [name for name, _ in copy.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert all(isinstance(parameter, nn.Parameter) for parameter in copy.parameters())
    assert (
        [p.requires_grad for p in copy.parameters()]
        == [p.requires_grad for p in model.parameters()]
        == [True, True, False]
    )
    assert storage_id(copy.get_buffer("top")) == storage_id(copy.get_buffer("rest"))
    assert copy.get_buffer("rest").storage_offset() == 6
    assert torch.equal(model.plain, torch.ones(5))


def test_a_model_without_memory_gets_a_copy_without_memory_altogether() -> None:
    with torch.device("meta"):
        model = nn.Linear(3, 3)
    model.register_buffer("scale", torch.ones(3))
    copy = _fakes().copy(model)
    assert {tensor.device.type for tensor in (*copy.parameters(), *copy.buffers())} == {"meta"}
