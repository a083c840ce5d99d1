"""Whether an emitted program computes what its model computes, seen without a line of the compiler.

    python benchmarks/zoo_compare.py MODEL.py OUT

One line of JSON: the differences, and how many parameters the model has. The compiler can't be imported here.
"""

import dataclasses
import importlib.util
import json
import random
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

BATCHES = (2, 3)
SEED = 11


class NoCompiler:
    """An importer that stands in front of all others: an emitted program runs without the compiler."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in ("stanza_compiler", "passes", "templates"):
            raise ImportError(f"the emitted program imports {name}")


def main() -> None:
    torch.set_num_threads(1)
    model_file, out = map(Path, sys.argv[1:])
    sys.meta_path.insert(0, NoCompiler)
    sys.path.insert(0, str(out))
    source = _imported(model_file, "zoo_model")
    whole_model = _imported(out / "whole_model.py", "whole_model")
    parameters = sum(parameter.numel() for parameter in source.build_model().parameters())
    print(json.dumps({"problems": compare(source, whole_model), "parameters": parameters}))


def _imported(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def compare(source: Any, whole_model: Any) -> list[str]:
    """The differences between the models that both modules' build_model() make, none when they are equal.

    Compared: state_dict (keys, order, initial values), parameters and buffers by name; then, in train and in eval mode
    at two batch sizes, outputs (containers, keys, types, shapes, values), the loss, all gradients, buffers afterwards.
    """
    expected, actual = source.build_model(), whole_model.build_model()
    problems = list(_names(expected, actual))
    if problems:
        return problems
    problems += _tensors("the initial", expected.state_dict(), actual.state_dict())
    for batch in BATCHES:
        for training in (True, False):
            mode = f"{'train' if training else 'eval'} at batch {batch}"
            wanted, loss = _step(expected, source, batch, training=training)
            try:
                got, other_loss = _step(actual, source, batch, training=training)
            except Exception as error:
                problems.append(f"{mode}: raises {type(error).__name__}: {error}")
                continue
            problems += [f"{mode}: {line}" for line in _outputs("output", wanted, got)]
            problems += [f"{mode}: {line}" for line in _tensors("the", {"loss": loss}, {"loss": other_loss})]
            problems += [f"{mode}: {line}" for line in _gradients(expected, actual)]
            held = dict(actual.named_buffers())
            buffers = dict(expected.named_buffers()), {name: held[name] for name in _buffer_names(actual, expected)}
            problems += [f"{mode}: {line}" for line in _tensors("buffer", *buffers)]
    return problems


def _names(expected: nn.Module, actual: nn.Module) -> Iterator[str]:
    pairs = (
        ("state_dict", list(expected.state_dict()), list(actual.state_dict())),
        ("parameters", *([(n, p.requires_grad) for n, p in m.named_parameters()] for m in (expected, actual))),
        ("buffers", *(_buffer_names(model, expected) for model in (expected, actual))),
    )
    for what, wanted, got in pairs:
        if wanted != got:
            odd = sorted(map(str, {*wanted} ^ {*got}))
            yield f"{what}: {len(got)} names instead of {len(wanted)}, {', '.join(odd[:4]) or 'in another order'}"


def _buffer_names(model: nn.Module, original: nn.Module) -> list[str]:
    """The original's buffers among the model's; a constant that forward() makes anew is a buffer of the program."""
    wanted = {name for name, _ in original.named_buffers()}
    return [name for name, _ in model.named_buffers() if name in wanted]


def _step(model: nn.Module, source: Any, batch: int, *, training: bool) -> tuple[Any, torch.Tensor]:
    """Output and loss of one forward, in train mode with the backward that leaves gradients on the parameters."""
    args = source.example_inputs(batch) if hasattr(source, "example_inputs") else ()
    kwargs = source.example_kwargs(batch) if hasattr(source, "example_kwargs") else {}
    targets = source.example_targets(batch) if hasattr(source, "example_targets") else None
    model.train(training)
    model.zero_grad(set_to_none=True)
    random.seed(SEED)
    torch.manual_seed(SEED)
    output = model(*args, **kwargs)
    loss: torch.Tensor = source.loss_fn(output, targets) if hasattr(source, "loss_fn") else output["loss"]
    if training:
        loss.backward()  # type: ignore[no-untyped-call]
    return output, loss.detach()


def _outputs(place: str, expected: Any, actual: Any) -> Iterator[str]:
    """Differences of two results: mappings of libraries by keys and attributes, named tuples by name and fields."""
    match expected:
        case torch.Tensor() if isinstance(actual, torch.Tensor):
            if expected.requires_grad != actual.requires_grad:
                yield f"{place}: requires_grad is {actual.requires_grad}"
            yield from _tensors("the", {place: expected}, {place: actual})
        case Mapping() if isinstance(actual, Mapping):
            is_plain = type(expected) in (dict, OrderedDict)
            if is_plain and type(expected) is not type(actual):
                yield f"{place}: a {type(actual).__name__} instead of a {type(expected).__name__}"
            if list(expected) != list(actual):
                yield f"{place}: keys {list(actual)} instead of {list(expected)}"
                return
            for key, value in expected.items():
                yield from _outputs(f"{place}[{key!r}]", value, actual[key])
                if not is_plain and getattr(actual, key, None) is not actual[key]:
                    yield f"{place}.{key} is not {place}[{key!r}]"
        case tuple() | list() if isinstance(actual, tuple | list):
            if _form(expected) != _form(actual):
                yield f"{place}: {_form(actual)} instead of {_form(expected)}"
                return
            for index, (value, other) in enumerate(zip(expected, actual, strict=True)):
                yield from _outputs(f"{place}[{index}]", value, other)
        case _ if dataclasses.is_dataclass(expected):
            if _form(expected) != _form(actual):
                yield f"{place}: {_form(actual)} instead of {_form(expected)}"
                return
            for field in dataclasses.fields(expected):
                yield from _outputs(f"{place}.{field.name}", getattr(expected, field.name), getattr(actual, field.name))
        case _:
            if type(expected) is not type(actual) or expected != actual:
                yield f"{place}: {_short(actual)} instead of {_short(expected)}"


def _form(value: Any) -> tuple[Any, ...]:
    """The container's name, fields and length: a class may be the program's own, of the same name."""
    fields = getattr(value, "_fields", None) or tuple(getattr(value, "__dataclass_fields__", ()))
    return type(value).__name__, fields, len(value) if isinstance(value, tuple | list) else None


def _short(value: Any) -> str:
    return f"a {type(value).__name__}" if isinstance(value, torch.Tensor | Mapping | tuple | list) else repr(value)[:80]


def _tensors(kind: str, expected: Mapping[str, torch.Tensor], actual: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Differences of tensors by name; values by 1e-5 of an element and 1e-6 of the tensor's largest one."""
    for name, wanted in expected.items():
        got = actual[name]
        if wanted.dtype != got.dtype or wanted.shape != got.shape:
            yield f"{kind} {name}: {got.dtype}{list(got.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
        elif not wanted.is_floating_point():
            if not torch.equal(wanted, got):
                yield f"{kind} {name}: differs"
        else:
            yield from _values(f"{kind} {name}", wanted, got, rtol=1e-5, atol=1e-6 * _largest(wanted))


def _gradients(expected: nn.Module, actual: nn.Module) -> Iterator[str]:
    """Differences of gradients, by 1e-4 of an element and 1e-5 of the parameter's largest one.

    One whose true value is zero is rounding noise: 1e-8 of the model's largest gradient is allowed to all.
    """
    others = dict(actual.named_parameters())
    noise = 1e-8 * max((_largest(p.grad) for p in expected.parameters() if p.grad is not None), default=0.0)
    for name, parameter in expected.named_parameters():
        wanted, got = parameter.grad, others[name].grad
        if wanted is None or got is None:
            if wanted is not got:
                yield f"the gradient of {name} is {'missing' if got is None else 'extra'}"
            continue
        yield from _values(f"the gradient of {name}", wanted, got, rtol=1e-4, atol=1e-5 * _largest(wanted) + noise)


def _largest(tensor: torch.Tensor) -> float:
    return tensor.detach().nan_to_num().abs().max().item() if tensor.numel() else 0.0


def _values(what: str, wanted: torch.Tensor, got: torch.Tensor, *, rtol: float, atol: float) -> Iterator[str]:
    if wanted.isnan().any():
        yield f"{what}: the model's own is nan, which proves nothing"
    elif not torch.allclose(wanted, got, rtol=rtol, atol=atol):
        gap = _largest(wanted.detach() - got.detach())
        yield f"{what}: differs by {gap:.3g}, the largest is {_largest(wanted):.3g}"


if __name__ == "__main__":
    main()
