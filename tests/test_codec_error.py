"""What a codec loses on a model's own activations, by hand."""

from dataclasses import replace

import torch
from torch import nn

from stanza_compiler.codecs import Codecs
from stanza_compiler.passes.codec_error import codec_error
from stanza_compiler.passes.trace import trace
from stanza_compiler.plan import Boundary, Plan
from tests.small_plan import PLAN
from tests.source_of import source_of

CROSSING = Boundary("0", (4, 6), "float32", "batched", 0, 24, True, 0, 1)


def judged(model: nn.Module, x: torch.Tensor, codec: str) -> Plan:
    source = source_of(model, x, targets=None)
    plan = replace(PLAN, boundary=(CROSSING,), codecs=Codecs(codec))
    return codec_error(source, trace(source, verify=False), plan)


def two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 3))


def test_bfloat16_loses_what_torchs_own_cast_loses() -> None:
    model, x = two_layers(), torch.randn(4, 5)
    (boundary,) = judged(model, x, "bf16").boundary
    h = model[0](x).detach().requires_grad_()
    model[1](h).square().mean().backward()  # the loss of a model without one
    for found, tensor in ((boundary.codec_error, h.detach()), (boundary.gradient_codec_error, h.grad)):
        assert found is not None
        assert tensor is not None
        lost = ((tensor.bfloat16().float() - tensor).norm() / tensor.norm()).item()
        assert 0 < lost < 2**-8
        assert abs(found - lost) <= 1e-6


def test_int8_loses_more_and_nothing_is_lost_as_it_is() -> None:
    model, x = two_layers(), torch.randn(4, 5)
    errors = [judged(model, x, codec).boundary[0].codec_error for codec in ("bf16", "int8")]
    assert errors[0] is not None
    assert errors[1] is not None
    assert errors[0] < errors[1] < 1 / 127
    assert judged(model, x, "fp32").boundary == (CROSSING,)


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    judged(model, torch.randn(4, 5, generator=torch.Generator()), "bf16")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
