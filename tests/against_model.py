"""A model compiled in a folder, and its program held against the model itself."""

import copy
from pathlib import Path
from textwrap import dedent
from typing import Any

import torch
from torch import Tensor, nn

from stanza_compiler.compiler import Compilation, compile_source
from stanza_compiler.errors import StanzaError
from stanza_compiler.loader import load
from stanza_compiler.options import Options
from stanza_compiler.passes.certify import imported
from stanza_compiler.plan import Request
from stanza_compiler.runtime.tree import tensors_of

HEAD = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    def example_inputs():
        return (torch.linspace(-1, 1, 24).reshape(4, 6),)

    def build_model():
        return Net()
    """


def compiled(folder: Path, text: str, *, name: str = "model", cut_after: str | None = None) -> Compilation:
    """What `text` below HEAD compiles to, without our own certificate; `text` may define anything in HEAD anew."""
    (folder / f"{name}.py").write_text(dedent(HEAD) + dedent(text), encoding="utf-8")
    request = Request(strategy="separate", cut_after=cut_after)
    return compile_source(Options(str(folder / f"{name}.py"), out=folder / "out", request=request, verify=False))


def refused(folder: Path, text: str) -> str:
    """The one line with which `text` is refused, as no certificate is asked for."""
    try:
        compiled(folder, text)
    except StanzaError as error:
        return str(error)
    raise AssertionError("it compiles")


def assert_is_the_model(folder: Path, *, name: str = "model") -> nn.Module:
    """Same state_dict, loadable both ways, same outputs and gradients in both modes; gives the program's model."""
    with load(Options(str(folder / f"{name}.py"))) as source, imported(folder / "out") as whole_model:
        model, emitted = source.module, whole_model.build_model()
        own, state = model.state_dict(), emitted.state_dict()
        assert list(state) == list(own)
        for key, value in own.items():
            if isinstance(value, Tensor):
                torch.testing.assert_close(state[key], value, rtol=0, atol=0)
        assert [(key, value.requires_grad) for key, value in emitted.named_parameters()] == [
            (key, value.requires_grad) for key, value in model.named_parameters()
        ]
        copy.deepcopy(model).load_state_dict(state, strict=True)
        copy.deepcopy(emitted).load_state_dict(own, strict=True)
        for training in (True, False):
            expected, actual = (_step(one, source.call.arguments(), training=training) for one in (model, emitted))
            torch.testing.assert_close(actual, expected)
        assert {key for key, _ in model.named_buffers()} <= {key for key, _ in emitted.named_buffers()}
        for key, value in model.named_buffers():
            torch.testing.assert_close(emitted.get_buffer(key) if key != "run" else emitted._buffers[key], value)
        return emitted


def _step(model: nn.Module, arguments: tuple[Any, Any], *, training: bool) -> list[Tensor | None]:
    """Outputs, then the gradients of every parameter, of one call."""
    model.train(training)
    model.zero_grad(set_to_none=True)
    torch.manual_seed(3)
    args, kwargs = arguments
    outputs = list(tensors_of(model(*args, **kwargs)))
    sum(output.square().sum() for output in outputs).backward()  # type: ignore[union-attr]
    return [*(output.detach() for output in outputs), *(parameter.grad for parameter in model.parameters())]
