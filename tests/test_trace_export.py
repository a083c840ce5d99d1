"""The export front-end: layers put back, readable calls, regions, sizes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from stanza_compiler.passes.trace import trace
from stanza_compiler.traced import Trace
from tests.source_of import source_of

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class Calling(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.function = nn.Linear(6, 6), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.first(x))


def exported(model: nn.Module, *inputs: torch.Tensor, **kwargs: Any) -> Trace:
    return trace(source_of(model, *inputs, kwargs=kwargs), front_end="export")


def calls(traced: Trace) -> list[fx.Node]:
    return [node for node in traced.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]


@pytest.mark.parametrize(
    "function",
    [
        lambda h: (h + 1) * h / 2 - h**2,
        lambda h: h[:, 1:4:2] + h[:, 2, None],
        lambda h: h[..., -1],
        lambda h: h.view(-1, 2, 3).permute(0, 2, 1).reshape(h.size(0), 6),
        lambda h: torch.cat([h, h.relu()], 1).softmax(-1).sum(1, keepdim=True),
        lambda h: F.gelu(h, approximate="tanh") + F.silu(h) + F.leaky_relu(h, 0.2),
        lambda h: F.layer_norm(h, (6,)) + F.log_softmax(h, 1),
        lambda h: torch.where(h > 0, h, -h).masked_fill(h > 1, 0.0),
        lambda h: h.to(torch.float64).mean(),
        lambda h: h * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        lambda h: torch.einsum("bi,bj->bij", h, h),
        lambda h: F.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None], is_causal=True),
        lambda h: h.split(2, 1)[1] + h.chunk(3, 1)[0] + torch.stack(h.unbind(1)[:2], 1),
        lambda h: F.pad(h, (1, 2), value=0.5) @ torch.ones(9, 2),
        lambda h: F.cross_entropy(h, torch.arange(h.size(0)) % 6, label_smoothing=0.1),
        lambda h: F.interpolate(h[:, None], size=9, mode="linear", align_corners=True),
        lambda h: (1 - h).clamp(min=0.1).rsqrt() + torch.full((6,), 2.0) + torch.zeros_like(h),
        lambda h: h.clone().index_fill_(1, torch.tensor([0]), 3.0).tril(),
        lambda h: h * (~(h > 0) & (h < 2) | (h == 0)),
        lambda h: h.expand(2, -1, -1).repeat(1, 1, 2).flatten(0, 1).unsqueeze(0).squeeze(0),
    ],
)
def test_aten_operators_come_back_as_torch_calls_that_do_the_same(function: Callable[..., Any]) -> None:
    model = Calling(function)
    traced = exported(model, X)
    assert not [node for node in calls(traced) if isinstance(node.target, torch._ops.OpOverload)]
    for batch in (2, 4, 7):
        x = torch.randn(batch, 6)
        torch.testing.assert_close(traced.run(x), model(x))


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(6, 6)
        self.rnn = nn.LSTM(6, 5, batch_first=True)
        self.attention = nn.MultiheadAttention(5, 1, batch_first=True)
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.twice(self.twice(x)).unsqueeze(1).expand(-1, 3, -1)
        out, (state, _) = self.rnn(h)
        attended, weights = self.attention(out, out, value=out, need_weights=True)
        return self.norm((attended + out).sum(1)) + state[0] + weights.sum()


def test_layers_with_several_calls_outputs_and_keywords_are_calls_again() -> None:
    model = Layers()
    traced = exported(model, X)
    layers = [node.target for node in calls(traced) if node.op == "call_module"]
    assert layers == ["twice", "twice", "rnn", "attention", "norm"]
    assert {"twice", "twice#2"} <= set(traced.names.values())
    x = torch.randn(5, 6)
    for training in (True, False):
        model.train(training)
        traced.root.train(training)
        torch.testing.assert_close(traced.run(x), model(x))


def test_a_device_that_tracing_knew_is_the_inputs_own() -> None:
    traced = exported(Calling(lambda h: h + torch.arange(6, device=h.device) + torch.ones(6)), X)
    factories = [node for node in calls(traced) if node.target in (torch.arange, torch.ones)]
    assert len(factories) == 2
    for node in factories:
        device = node.kwargs["device"]
        assert isinstance(device, fx.Node)
        assert (device.target, device.args[1]) == (getattr, "device")


class Auxiliary(nn.Module):
    """Gives a second output while it trains, as GoogLeNet does."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.aux = nn.Linear(6, 3), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> Any:
        main = self.main(x)
        return (main, self.aux(x)) if self.training else {"main": main}


@pytest.mark.parametrize("front_end", ["fx", "export"])
def test_an_output_of_another_form_in_eval_mode_follows_the_mode(front_end: Any) -> None:
    model = Auxiliary()
    traced = trace(source_of(model, X), front_end=front_end)
    main, aux = traced.run(X)
    assert torch.equal(main, model.main(X))
    assert torch.equal(aux, model.aux(X))
    traced.root.eval()
    assert list(traced.run(X)) == ["main"]
