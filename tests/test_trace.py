"""Tracing: names, lines, what is refused, and that the user's model stays as it was."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from stanza_compiler.errors import LoadError, StanzaError, TraceError
from stanza_compiler.loader import load
from stanza_compiler.options import Options
from stanza_compiler.passes.trace import trace
from stanza_compiler.traced import Trace
from tests.source_of import source_of


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(4, 4))
        self.scale = nn.Parameter(torch.ones(4))
        self.unused = nn.Linear(2, 2)
        self.classifier.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.features(x).mean((2, 3)) * self.scale
        return self.classifier[1](F.relu(self.classifier(h)))


def small() -> Small:
    torch.manual_seed(0)
    return Small()


IMAGE = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def names(traced: Trace) -> list[str]:
    return list(traced.names.values())


def test_ops_are_called_by_module_path_with_a_number_from_the_second_call_on() -> None:
    assert names(trace(source_of(small(), IMAGE))) == [
        "x",
        "features.0",
        "features.1",
        "features.2",
        "mean",
        "mul",
        "classifier.0",
        "classifier.1",
        "relu",
        "classifier.1#2",
    ]


def test_parameters_are_the_models_own_under_their_original_names() -> None:
    model = small()
    traced = trace(source_of(model, IMAGE))
    ours, theirs = dict(traced.root.named_parameters()), dict(model.named_parameters())
    assert list(ours) == list(theirs)
    assert all(ours[name] is theirs[name] for name in theirs)
    assert [node.target for node in traced.graph.nodes if node.op == "get_attr"] == ["scale"]


@pytest.mark.parametrize("training", [True, False])
def test_the_graph_computes_what_the_model_computes(training: bool) -> None:
    model = small()
    traced = trace(source_of(model, IMAGE))
    results = []
    for run, module in ((model, model), (traced.run, traced.root)):
        module.train(training)
        torch.manual_seed(3)
        output = run(IMAGE)
        results.append((output, *torch.autograd.grad(output.sum(), [model.scale, model.features[0].weight])))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_the_users_model_is_as_it_was_and_so_are_the_random_numbers() -> None:
    model = small()
    model.features[1].eval()
    model.scale.grad = torch.full((4,), 7.0)
    parameters = dict(model.named_parameters())
    buffers = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    attributes = {path: dict(vars(module)) for path, module in model.named_modules()}
    before = torch.random.get_rng_state(), random.getstate(), str(np.random.get_state())
    trace(source_of(model, IMAGE))
    assert all(value is parameters[name] for name, value in model.named_parameters())
    assert all(parameter.grad is None for name, parameter in model.named_parameters() if name != "scale")
    assert model.scale.grad.tolist() == [7.0] * 4
    assert all(torch.equal(buffers[name][1], buffer) for name, buffer in model.named_buffers())
    assert all(buffers[name][0] is buffer for name, buffer in model.named_buffers())
    assert all(dict(vars(module)) == attributes[path] for path, module in model.named_modules())
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (random.getstate(), str(np.random.get_state())) == before[1:]


def test_the_mode_that_the_model_is_in_stays_that_of_every_module_of_the_trace() -> None:
    model = small().eval()
    model.features.train()
    traced = trace(source_of(model, IMAGE))
    assert {path: module.training for path, module in traced.root.named_modules()} == {
        path: module.training for path, module in model.named_modules()
    }


def test_a_module_name_that_is_no_identifier_and_a_keyword_survive() -> None:
    model = nn.Sequential()
    model.add_module('cla"ss', nn.Linear(3, 3))
    model.add_module("import os", nn.Linear(3, 3))
    assert names(trace(source_of(model, torch.ones(4, 3)))) == ["input", 'cla"ss', "import os"]


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Structured(nn.Module):
    def forward(self, batch: dict[str, Any], *more: torch.Tensor, twice: bool = False, **extra: Any) -> Any:
        left = batch["pair"].left + batch["list"][0] + (more[0] if more else 0)
        if twice:
            left = left * 2
        if extra["mask"] is not None:
            left = left * extra["mask"]
        return {"left": left, "rest": (None, Pair(left, batch["pair"].right))}


def test_containers_options_and_absent_tensors_mean_what_they_mean_in_eager_mode() -> None:
    one = torch.ones(4, 1)
    batch = {"pair": Pair(one, one * 2), "list": [one]}
    traced = trace(source_of(Structured(), batch, one, kwargs={"twice": True, "mask": None}))
    assert names(traced) == [
        "batch_pair_left",
        "batch_pair_right",
        "batch_list_0",
        "more_0",
        "add",
        "add_1",
        "mul",
    ]
    output = traced.run(batch, one, twice=True, mask=None)
    assert output["left"].tolist() == [[6.0]] * 4
    assert type(output["rest"][1]) is Pair


def test_an_input_called_like_a_builtin_keeps_its_name() -> None:
    class Builtin(nn.Module):
        def forward(self, input: torch.Tensor, min: torch.Tensor) -> torch.Tensor:  # noqa: A002
            return input + min

    assert names(trace(source_of(Builtin(), torch.ones(2), torch.ones(2)))) == ["input", "min", "add"]


def test_without_verification_a_model_is_traced_but_never_run() -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if isinstance(x, torch.Tensor):
                type(self).calls += 1
            return x * 1

    trace(source_of(Counting(), torch.ones(2)), verify=False)
    assert Counting.calls == 0


def test_a_loss_without_gradients_and_a_model_without_parameters_are_traced() -> None:
    assert names(trace(source_of(nn.Sequential(nn.ReLU(), nn.Flatten()), IMAGE))) == ["input", "0", "1"]


def test_a_model_that_takes_its_own_batch_alone_is_compared_at_that_batch() -> None:
    class Baked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(4, 108) * 2

    assert names(trace(source_of(Baked(), IMAGE))) == ["x", "view", "mul"]


HEAD = """\
import random

import numpy
import torch
import torch.nn.functional as F
from torch import nn


class Steeper(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4, 2)
        self.gain = nn.Parameter(torch.full((4, 1, 1), 0.5))
        self.register_buffer("seen", torch.ones(4))
        self.plain = torch.ones(4)
        self.steps = 0
        self.register_forward_hook(log) if HOOK else None

    def forward(self, x):
        h = self.conv(x)
"""  # the body follows, from line 32 on
TAIL = """
        return self.fc(h.mean((2, 3)))


def log(module, inputs, output):
    return None


def example_inputs():
    return (torch.randn(4, 3, 8, 8),)
"""


def told(folder: Path, body: str, *, hook: bool = False, front_end: Literal["auto", "fx", "export"]) -> StanzaError:
    """The error of tracing a model whose forward holds the lines of `body`."""
    indented = "".join(f"        {line}\n" for line in body.splitlines())
    (folder / "model.py").write_text(f"{HEAD}{indented}{TAIL}HOOK = {hook}\n")
    with load(Options(f"{folder / 'model.py'}:Net")) as source, pytest.raises(StanzaError) as caught:
        trace(source, front_end=front_end)
    return caught.value


@pytest.mark.parametrize(
    ("body", "line", "cause"),
    [
        ("if isinstance(h, torch.Tensor):\n    h = h * self.gain", 33, "this line runs, but not while torch.fx traces"),
        ("if not isinstance(h, torch.Tensor):\n    h = h * self.gain", 33, "this line runs only while torch.fx traces"),
        ("h = h + 0.5 * torch.randn(4, 1, 1)", 32, "torch.fx freezes random numbers"),
        ("h = h + 1e-9 * torch.randn(4, 1, 1)", 32, "torch.fx freezes random numbers"),
        ("h = h * torch.rand(1).item()", 32, "torch.fx freezes random numbers"),
        ("h = h * random.choice([1, 1, 2, 3])", 32, "torch.fx freezes random numbers"),
        ("h = h * numpy.random.rand()", 32, "torch.fx freezes random numbers"),
        ("if random.random() < 0.5:\n    h = torch.relu(h)", 33, "torch.fx freezes random numbers"),
        ("with torch.no_grad():\n    h = h * self.gain", 33, "torch.fx drops the torch.no_grad region"),
        ("h = Steeper.apply(h)", 12, "torch.fx drops the torch.no_grad region or autograd.Function"),
        ("with torch.autocast('cpu', torch.bfloat16):\n    h = self.conv(x)\nh = h.float()", 33,
         "torch.fx drops the autocast region"),
        ("self.seen = self.seen + h.mean((0, 2, 3)).detach()", 32, "forward() writes self.seen in a way"),
        ("self.seen += h.mean((0, 2, 3)).detach()", 32, "forward() writes self.seen in a way"),
        ("self.state = h", 31, "forward() writes self.state in a way"),
        ("self.plain.mul_(0.5)", None, "forward() writes self.plain in a way"),
        ("self.steps += 1\nh = h * self.steps", 33, "torch.fx freezes an attribute that forward() changes"),
        ("import time\nh = h * time.time()", 33, "torch.fx freezes what differs from call to call"),
    ],
)  # fmt: skip
def test_what_tracing_would_get_silently_wrong_is_refused_with_its_line(
    body: str, line: int | None, cause: str, tmp_path: Path
) -> None:
    error = told(tmp_path, body, front_end="fx")
    assert isinstance(error, TraceError)
    assert error.place == (f"model.py:{line}" if line else "model.py")
    assert error.what.startswith(cause)
    assert error.remedy


@pytest.mark.parametrize(
    ("body", "cause", "remedy"),
    [
        ("if h.sum() > 0:\n    h = -h", "the branch `if h.sum() > 0` depends on a tensor or its size", "torch.where"),
        ("if h.shape[0] > 2:\n    h = -h", "the branch `if h.shape[0] > 2` depends on a tensor or its size", ""),
        ("assert x.shape[0] == 4", "the branch `assert x.shape[0] == 4` depends on a tensor or its size", ""),
        ("h = torch.stack([item for item in h])", "Proxy object cannot be iterated", "torch operations"),
        ("for _ in range(len(h)): h = -h", "'len' is not supported in symbolic tracing by default", ""),
        ("for _ in range(h.shape[2]): h = -h", "'Proxy' object cannot be interpreted as an integer", "torch functions"),
        ("h[:, 0] = 0", "'Proxy' object does not support item assignment", "torch functions"),
        ("self.seen[0] = 3.0", "'Proxy' object does not support item assignment", "torch functions"),
    ],
)
def test_what_cannot_be_traced_is_told_with_line_and_cause(body: str, cause: str, remedy: str, tmp_path: Path) -> None:
    error = told(tmp_path, body, front_end="fx")
    assert isinstance(error, TraceError)
    assert error.place == "model.py:32"
    assert error.what.startswith(f"torch.fx can't trace this: {cause}")
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("h = h.view(4, 5)", "RuntimeError: shape '[4, 5]' is invalid for input of size 576"),
        ("h = self.fc(h)", "RuntimeError: mat1 and mat2 shapes cannot be multiplied (96x6 and 4x2)"),
        ("raise ValueError('of my own')", "ValueError: of my own"),
        ("h = self.absent(h)", "AttributeError: 'Net' object has no attribute 'absent'"),
    ],
)
def test_a_forward_that_fails_by_itself_is_told_as_the_users_error(body: str, what: str, tmp_path: Path) -> None:
    error = told(tmp_path, body, front_end="fx")
    assert isinstance(error, LoadError)
    assert error.place == "model.py:32"
    assert error.what == f"one training step on the example inputs raised {what}"


def test_a_hook_on_the_whole_model_is_refused_at_its_own_line(tmp_path: Path) -> None:
    error = told(tmp_path, "h = -h", hook=True, front_end="fx")
    assert isinstance(error, TraceError)
    assert error.place == "model.py:37"
    assert error.what == "torch.fx ignores a hook on the whole model"


class Writing(nn.Module):
    def __init__(self, write: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(3))
        self.write = write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.write(self.seen, x)
        return x * self.seen


@pytest.mark.parametrize(
    "write",
    [
        lambda seen, x: seen.mul_(0.5),
        lambda seen, x: seen.copy_(x.mean(0)),
        lambda seen, x: torch.add(seen, 1, out=seen),
    ],
)
def test_a_buffer_that_is_written_in_place_is_written_by_every_run_of_the_graph(
    write: Callable[[torch.Tensor, torch.Tensor], object],
) -> None:
    model = Writing(write)
    traced = trace(source_of(model, torch.ones(2, 3)))
    for _ in range(3):
        assert torch.equal(model(torch.ones(2, 3)), traced.run(torch.ones(2, 3)))


def test_a_counter_that_nothing_reads_is_no_reason_to_refuse() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x + 1

    model = Counting()
    assert names(trace(source_of(model, torch.ones(2)))) == ["x", "add"]
    assert model.calls == 0


def test_no_proxy_stays_in_the_users_model_after_a_refusal() -> None:
    class Keeping(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept = x + 1
            return self.kept

    model = Keeping()
    with pytest.raises(TraceError):
        trace(source_of(model, torch.ones(2)), front_end="fx")
    assert not hasattr(model, "kept")
    assert not any(isinstance(value, fx.Proxy) for value in vars(model).values())


def test_a_loss_that_misses_its_targets_says_what_to_define(tmp_path: Path) -> None:
    (tmp_path / "untold.py").write_text(
        "import torch\n\ndef build_model():\n    return torch.nn.Linear(3, 4)\n\n"
        "def example_inputs():\n    return (torch.randn(4, 3),)\n\n"
        "def loss_fn(outputs, targets):\n    return (outputs - targets[0]).square().mean()\n"
    )
    with load(Options(str(tmp_path / "untold.py"))) as source, pytest.raises(LoadError, match="define example_targets"):
        trace(source)


@pytest.mark.parametrize("front_end", ["fx", "export"])
@pytest.mark.parametrize(
    "body",
    [
        "h = F.dropout(h, 0.5, training=self.training)",
        "if self.training:\n    h = h * 1.5",
        "if not self.training:\n    h = h * 1.5 + self.fc(h.mean((2, 3))).mean()",
        "if self.training:\n    h = torch.relu(h)\nelse:\n    h = torch.tanh(h).clone()",
        "h = h * (2 if self.training else 3)",
    ],
)
def test_the_graph_follows_the_models_mode(body: str, front_end: Literal["fx", "export"], tmp_path: Path) -> None:
    indented = "".join(f"        {line}\n" for line in body.splitlines())
    (tmp_path / "model.py").write_text(f"{HEAD}{indented}{TAIL}HOOK = False\n")
    with load(Options(f"{tmp_path / 'model.py'}:Net")) as source:
        traced = trace(source, front_end=front_end)
        x = torch.randn(3, 3, 8, 8)
        for training in (True, False):
            source.module.train(training)
            traced.root.train(training)
            torch.manual_seed(1)
            expected = source.module(x)
            torch.manual_seed(1)
            assert torch.equal(traced.run(x), expected)


@pytest.mark.parametrize(
    "body",
    [
        "if isinstance(h, torch.Tensor):\n    h = h * self.gain",
        "with torch.no_grad():\n    h = h * self.gain",
        "with torch.autocast('cpu', torch.bfloat16):\n    h = self.conv(x)\nh = h.float()",
        "self.seen += h.mean((0, 2, 3)).detach()",
        "for _ in range(h.shape[2]): h = -h + 1",
        "h = h.clone()\nh[:, 0] = 0",
        "h = h + 0.5 * torch.randn(4, 1, 1)",
        "h = torch.stack([item for item in h.unbind(1)], 1)",
        "self.kept = h * 2\nh = self.kept",
    ],
)
def test_what_torch_fx_refuses_torch_export_traces(body: str, tmp_path: Path) -> None:
    indented = "".join(f"        {line}\n" for line in body.splitlines())
    (tmp_path / "model.py").write_text(f"{HEAD}{indented}{TAIL}HOOK = False\n")
    with load(Options(f"{tmp_path / 'model.py'}:Net")) as source:
        traced = trace(source)
        assert (traced.front_end, "torch.fx" in traced.why) == ("export", True)
        assert {"conv", "fc"} <= set(names(traced))  # layers are calls of layers again
        x = torch.randn(5, 3, 8, 8)
        torch.manual_seed(1)
        expected = source.module(x)
        torch.manual_seed(1)
        assert torch.allclose(traced.run(x), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "line", "cause"),
    [
        ("if h.sum() > 0:\n    h = -h", 32, "depends on a tensor's values"),
        ("if h.shape[0] % 3 == 1:\n    h = -h", 32, "takes another path where the batch isn't"),
        ("if h.shape[0] < 7:\n    h = -h", 32, "takes another path where the batch isn't x.shape[0] < 7"),
        ("import time\nh = h * time.time()", 33, "torch.export freezes what differs from call to call"),
        ("if random.random() < 0.5:\n    h = torch.relu(h)", 33, "torch.export freezes random numbers"),
        ("h = h * random.choice([1, 1, 2, 3])", 32, "torch.export freezes random numbers"),
        ("self.steps += 1\nh = h * self.steps", 33, "torch.export freezes an attribute that forward() changes"),
        ("h = Steeper.apply(h)", None, ""),
    ],
)
def test_what_neither_front_end_can_do_is_refused_with_both_reasons(
    body: str, line: int | None, cause: str, tmp_path: Path
) -> None:
    error = told(tmp_path, body, front_end="auto")
    assert isinstance(error, TraceError)
    assert error.place.startswith("model.py:")
    assert "torch.fx" in error.what
    assert cause in error.what
    assert line is None or f"model.py:{line}" in str(error)


class Collecting(nn.Module):
    """Hooks its layers at the first call, as transformers' models do to collect hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.last = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)), nn.Linear(4, 2)
        self.hooked = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.hooked:
            for layer in self.layers:
                layer.register_forward_hook(lambda module, args, output: COLLECTED.append(output))
            self.hooked = True
        COLLECTED.clear()
        for layer in self.layers:
            x = layer(x)
        return self.last(torch.stack(COLLECTED).sum(0))


COLLECTED: list[torch.Tensor] = []


def test_hooks_that_the_first_call_registers_are_there_at_the_second() -> None:
    source = source_of(Collecting(), torch.randn(4, 4))
    assert trace(source, front_end="export").front_end == "export"
