"""A user's file trained by plain torch in one process, and what a program made of the file has to give instead."""

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from stanza_compiler.cluster import Cluster
from stanza_compiler.compiler import compile_source
from stanza_compiler.options import Options
from stanza_compiler.plan import Plan, Request
from tests.launch import run

State = dict[str, Tensor]
Named = Sequence[tuple[str, nn.Parameter]]

STEPS = 5
SEPARATE = Request(strategy="separate")

LAYOUTS = {
    "2+1": (3, ("--placement", "dedicated", "--conv-workers", 2, "--fc-workers", 1)),
    "3 colocated, 1 host": (3, ("--placement", "colocated", "--fc-workers", 1)),
    "3 colocated, 2 hosts": (3, ("--placement", "colocated", "--fc-workers", 2)),
    "3+2": (5, ("--placement", "dedicated", "--conv-workers", 3, "--fc-workers", 2)),
    "4+1": (5, ("--placement", "dedicated", "--conv-workers", 4, "--fc-workers", 1)),
    "5 colocated, 2 hosts": (5, ("--placement", "colocated", "--fc-workers", 2)),
    "3 data-parallel": (3, ()),
}


def derive(folder: Path, *originals: Path, lines: str) -> Path:
    """A user's file that has all of the last of `originals`, copied beside it, but for what `lines` say."""
    folder.mkdir(parents=True, exist_ok=True)
    for original in originals:
        shutil.copy(original, folder)
    name = originals[-1].stem
    file = folder / "model.py"
    file.write_text(f"import {name}\nimport torch\nfrom {name} import *\n\n{lines}", encoding="utf-8")
    return file


def compiled(file: Path, out: Path, request: Request = SEPARATE) -> Plan:
    """The plan of the program that is now in `out`; its certificate is other tests' matter."""
    options = Options(str(file), out=out, cluster=Cluster(nodes=3), request=request, verify=False)
    return compile_source(options).plan


def order(plan: Plan) -> str:
    return "-".join(role for role, _ in plan.sequence)


def held(out: Path, role: str) -> set[str]:
    """The names of what the ranks of a role load."""
    return set(torch.load(out / "weights" / f"{role}_stage.pt", weights_only=True))


def one_process(
    file: Path, make_optimizer: Callable[[Named], Any], *, global_batch: int, items: Sequence[Any] | None = None
) -> tuple[State, State]:
    """The weights before and after 5 steps on items 0, 1, 2, ..., in global batches, a short one at the end.

    `items` are those of a file without make_dataset().
    """
    with imported(file) as user:
        torch.manual_seed(0)  # as the loader does
        model = user.build_model()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        optimizer = make_optimizer(list(model.named_parameters()))
        items = items or user.make_dataset()
        collate = getattr(user, "collate_fn", default_collate)
        position = 0
        for _ in range(STEPS):
            stop = min(position + global_batch, len(items))
            inputs, targets = collate([items[number] for number in range(position, stop)])
            outputs = model(*inputs) if isinstance(inputs, list | tuple) else model(inputs)
            loss = user.loss_fn(outputs, targets) if hasattr(user, "loss_fn") else outputs.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            position = 0 if stop == len(items) else stop
        return before, dict(model.state_dict())


def sgd(lr: float) -> Callable[[Named], torch.optim.Optimizer]:
    return lambda named: torch.optim.SGD([parameter for _, parameter in named], lr=lr, momentum=0.9)


def adamw(named: Named) -> torch.optim.Optimizer:
    return torch.optim.AdamW([parameter for _, parameter in named], lr=1e-3)


def assert_trains_alike(
    out: Path, layout: str, scratch: Path, expected: tuple[State, State], *, global_batch: int
) -> None:
    """Run the program in a layout: every parameter is what one process makes of it.

    Of float32 |a - b| <= 1e-6 + 1e-5 |a|, of float64 1e-9. Each has learned five times as much at least, so that the
    share of one of five ranks would be missed.
    """
    world_size, flags = LAYOUTS[layout]
    export = scratch / "trained.pt"
    length = ("--no-shuffle", "--steps", STEPS, "--global-batch-size", global_batch)
    run(out, world_size, *length, *flags, "--timeout", 300, "--export", export, timeout_s=600)
    before, after = expected
    trained = torch.load(export, weights_only=True)
    assert list(trained) == list(after)
    for name, tensor in after.items():
        allowed = 1e-9 if tensor.dtype == torch.float64 else 1e-6 + 1e-5 * tensor.abs()
        assert trained[name].dtype == tensor.dtype
        assert ((trained[name] - tensor).abs() <= allowed).all(), (
            f"{name}, off by {(trained[name] - tensor).abs().max()}"
        )
        moved = (tensor - before[name]).abs()
        assert (moved > 5 * allowed).any(), f"{name} has moved by {moved.max()} alone"


@contextmanager
def imported(file: Path) -> Iterator[ModuleType]:
    """The user's file as a module; what it imports of its own folder is forgotten afterwards."""
    spec = importlib.util.spec_from_file_location("of_one_process", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(file.parent))
        for path in file.parent.glob("*.py"):
            sys.modules.pop(path.stem, None)
