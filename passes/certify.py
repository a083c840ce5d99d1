"""Whether the emitted files compute what the model computes."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from stanza_compiler.comparison import Difference, Observation, difference, observe
from stanza_compiler.errors import CertificateError
from stanza_compiler.extra_state import same
from stanza_compiler.loader import Source, first_line
from stanza_compiler.plan import Certificate

BATCHES = (1, 2, 3)
LEARNING_RATE = 0.01


def certify(source: Source, folder: Path) -> Certificate:
    """Import the emitted whole_model.py afresh and hold it against the model, on the same random numbers.

    Compared in train and eval mode, at every batch of 1, 2 and 3 that the model itself accepts (else at the
    example's own): outputs, loss, every gradient, buffers, one SGD step, state_dict keys. Raises
    CertificateError with the first difference.
    """
    with torch.random.fork_rng(), _importing(source, folder) as whole_model:
        try:
            emitted = whole_model.build_model()
        except Exception as error:
            what = f"the emitted program can't be built: {type(error).__name__}: {first_line(error)}"
            raise CertificateError(source.place, what, _REPORT) from error
        names_equal = list(emitted.state_dict()) == list(source.module.state_dict())
        if not names_equal:
            odd = sorted(set(emitted.state_dict()) ^ set(source.module.state_dict()))
            what = f"the emitted state_dict has other keys: {', '.join(odd[:3]) or 'the same in another order'}"
            raise CertificateError(source.place, what, _REPORT)
        _compare_state(source, emitted)
        differences: list[Difference] = []
        modes: list[str] = []
        refused: list[str] = []
        for batch, training, expected in _observations(source, refused):
            mode = _mode(batch, training)
            try:
                actual = observe(emitted, source, batch=batch, training=training)
            except Exception as error:
                what = f"the emitted program fails in {mode}: {type(error).__name__}: {first_line(error)}"
                raise CertificateError(source.place, what, _REPORT) from error
            found = difference(expected, actual)
            if found.first:
                raise CertificateError(
                    source.place, f"the emitted program is not the model in {mode}: {found.first}", _REPORT
                )
            differences.append(found)
            modes.append(mode)
            if training and "sgd step" not in modes:
                _compare_step(source, emitted, expected, actual)
                modes.append("sgd step")
    return Certificate(
        passed=True,
        forward_max_abs_diff=max(found.forward for found in differences),
        gradient_max_abs_diff=max(found.gradient for found in differences),
        buffers_equal=all(found.buffers_equal for found in differences),
        names_equal=names_equal,
        modes=tuple(modes),
        refused=tuple(refused),
    )


@contextlib.contextmanager
def _importing(source: Source, folder: Path) -> Iterator[ModuleType]:
    with contextlib.ExitStack() as stack:
        try:
            whole_model = stack.enter_context(imported(folder))
        except Exception as error:
            what = f"the emitted program can't be imported: {type(error).__name__}: {first_line(error)}"
            raise CertificateError(source.place, what, _REPORT) from error
        yield whole_model


def _compare_state(source: Source, emitted: nn.Module) -> None:
    """Raise CertificateError unless the program starts with the model's own values and trains the same parameters."""
    own = source.module.state_dict()
    for name, value in emitted.state_dict().items():
        if not same(value, own[name]):
            raise CertificateError(source.place, f"the emitted {name} starts with another value", _REPORT)
    trains, expected = (
        [(name, parameter.requires_grad) for name, parameter in model.named_parameters()]
        for model in (emitted, source.module)
    )
    if trains != expected:
        odd = sorted(set(trains) ^ set(expected))
        what = f"the emitted program trains other parameters: {odd[0][0] if odd else 'the same in another order'}"
        raise CertificateError(source.place, what, _REPORT)


_REPORT = "try another cut with --cut-after and report this as a bug"


def _observations(source: Source, refused: list[str]) -> Iterator[tuple[int, bool, Observation]]:
    """What the model itself does at each batch and mode, one at a time for the memory's sake.

    What it refuses, such as BatchNorm a single value, is added to `refused`.
    """
    has_batch = any(leaf.batch_axis is not None for leaf in source.call.leaves)
    steps = [(batch, training) for batch in BATCHES for training in (True, False)] if has_batch else []
    for batch, training in steps:
        try:
            expected = observe(source.module, source, batch=batch, training=training)
        except Exception as error:
            refused.append(f"{_mode(batch, training)} ({type(error).__name__}: {first_line(error)})")
        else:
            yield batch, training, expected
    if len(refused) == len(steps):
        batch = source.call.batch_size
        for training in (True, False):
            yield batch, training, observe(source.module, source, batch=batch, training=training)


def _mode(batch: int, training: bool) -> str:
    return f"{'train' if training else 'eval'} at batch {batch}"


def _compare_step(source: Source, emitted: nn.Module, expected: Observation, actual: Observation) -> None:
    """One SGD step of the emitted parameters against the model's own parameters less the gradient, then undone."""
    parameters = dict(emitted.named_parameters())
    originals = dict(source.module.named_parameters())
    trained = [name for name, gradient in actual.gradients.items() if gradient is not None]
    if not trained:
        return
    for name in trained:
        parameters[name].grad = actual.gradients[name]
    torch.optim.SGD([parameters[name] for name in trained], lr=LEARNING_RATE).step()
    with torch.no_grad():
        for name in trained:
            gradient = expected.gradients[name]
            assert gradient is not None
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            try:
                torch.testing.assert_close(parameters[name], originals[name] - LEARNING_RATE * dense)
            except AssertionError as error:
                what = f"one SGD step of {name} differs: {first_line(error)}"
                raise CertificateError(source.place, what, _REPORT) from error
            parameters[name].copy_(originals[name])
            parameters[name].grad = None


@contextlib.contextmanager
def imported(folder: Path) -> Iterator[ModuleType]:
    """The program's whole_model, imported afresh and forgotten afterwards; nothing is written beside it."""
    names = {path.stem for path in folder.glob("*.py")}
    hidden = {name: sys.modules.pop(name) for name in sorted(names) if name in sys.modules}
    writes = sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    try:
        importlib.invalidate_caches()
        yield importlib.import_module("whole_model")
    finally:
        sys.dont_write_bytecode = writes
        sys.path.remove(str(folder))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)
