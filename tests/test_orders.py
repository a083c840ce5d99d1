"""Parameter-heavy parts in front and at both ends, from a model file to trained weights."""

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from stanza_compiler.cluster import Cluster
from stanza_compiler.compiler import compile_source
from stanza_compiler.options import Options
from stanza_compiler.plan import Request, read_request, to_json
from tests.launch import run

State = dict[str, Tensor]

STEPS = 5
SEPARATE = Request(strategy="separate")
# By itself the planner leaves tables this small to CONV: their rows are few.
TABLES_IN_FRONT = Request(
    strategy="separate", placement="dedicated", conv_workers=2, fc_workers=1,
    fc_ops=("getitem", "tables.0", "getitem_1", "tables.1", "getitem_2", "tables.2"),
)  # fmt: skip


def compiled(file: Path, out: Path, request: Request = SEPARATE) -> list[tuple[str, tuple[str, ...]]]:
    plan = compile_source(Options(str(file), out=out, cluster=Cluster(nodes=3), request=request)).plan
    assert plan.certificate is not None
    assert plan.certificate.passed
    return list(plan.sequence)


def loss_of_two_ends(w: State, batch: list[tuple[Tensor, Tensor]]) -> Tensor:
    ids, targets = (torch.stack(column) for column in zip(*batch, strict=True))
    h = w["table.weight"][ids] + w["places.weight"][:8]
    for _ in range(2):
        h = h + torch.softmax(h @ h.transpose(1, 2), -1) @ h
        h = h + torch.tanh(F.conv1d(h.transpose(1, 2), w["body.weight"], w["body.bias"], padding=1)).transpose(1, 2)
    scores = h @ w["table.weight"].T
    return F.cross_entropy(scores[targets >= 0], targets[targets >= 0])


def loss_of_tables(w: State, batch: list[tuple[tuple[Tensor, Tensor], Tensor]]) -> Tensor:
    inputs, targets = zip(*batch, strict=True)
    dense, sparse = (torch.stack(column) for column in zip(*inputs, strict=True))
    rows = [F.linear(dense, w["bottom.weight"], w["bottom.bias"]).relu()]
    rows += [w[f"tables.{k}.weight"][sparse[:, k]].sum(1) for k in range(3)]
    stacked = torch.stack(rows, 1)
    pairs = (stacked @ stacked.transpose(1, 2)).flatten(1)
    scores = F.linear(pairs, w["top.weight"], w["top.bias"]).squeeze(1)
    return F.binary_cross_entropy_with_logits(scores, torch.stack(targets))


def one_process(
    weights: State, items: object, loss: Callable[[State, list[object]], Tensor], momentum: float, global_batch: int
) -> State:
    """SGD by hand, lr 0.05, items 0, 1, 2, ... of 29, a short batch at the end."""
    w = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    velocity: State = {}
    position = 0
    for _ in range(STEPS):
        stop = min(position + global_batch, 29)
        batch = [items[index] for index in range(position, stop)]  # type: ignore[index]
        gradients = torch.autograd.grad(loss(w, batch), list(w.values()))
        with torch.no_grad():
            for name, gradient in zip(w, gradients, strict=True):
                velocity[name] = velocity[name] * momentum + gradient if name in velocity else gradient
                w[name] -= 0.05 * velocity[name]
        position = 0 if stop == 29 else stop
    return {name: tensor.detach() for name, tensor in w.items()}


@pytest.fixture(scope="module")
def programs(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("orders")
    two_ends = compiled(models / "two_ends.py", folder / "two_ends")
    assert [role for role, _ in two_ends] == ["fc", "conv", "fc"]
    assert "table" in two_ends[0][1]
    assert two_ends[2][1] == ("head",)
    tables = compiled(models / "tables.py", folder / "tables", TABLES_IN_FRONT)
    assert [role for role, _ in tables] == ["fc", "conv"]
    assert set(tables[0][1]) == set(TABLES_IN_FRONT.fc_ops or ())
    return folder


@pytest.mark.parametrize("name", ["two_ends", "tables"])
@pytest.mark.parametrize(
    ("ranks", "batch", "flags"),
    [
        (3, 6, ("--placement", "dedicated", "--conv-workers", 2, "--fc-workers", 1)),
        (3, 4, ("--placement", "colocated", "--fc-workers", 2)),
    ],
    ids=["2+1", "3 colocated, 2 hosts"],
)
def test_training_in_these_orders_is_one_process_training(
    programs: Path, models: Path, tmp_path: Path, name: str, ranks: int, batch: int, flags: tuple[object, ...]
) -> None:
    export = tmp_path / "trained.pt"
    run(programs / name, ranks, "--no-shuffle", "--steps", STEPS, "--batch-size", batch, "--export", export, *flags)
    trained = torch.load(export, weights_only=True)
    weights: State = {}
    for stage in ("conv_stage", "fc_stage"):
        weights |= torch.load(programs / name / "weights" / f"{stage}.pt", weights_only=True)
    weights.pop("head.weight", None)  # the table's
    user: dict[str, object] = {}
    exec((models / f"{name}.py").read_text(), user)
    loss, momentum = (loss_of_two_ends, 0.9) if name == "two_ends" else (loss_of_tables, 0.0)
    items = user["make_dataset"]()  # type: ignore[operator]
    expected = one_process(weights, items, loss, momentum, 12)  # type: ignore[arg-type]
    if name == "two_ends":
        expected["head.weight"] = expected["table.weight"]
    assert set(trained) == set(expected)
    for key, tensor in expected.items():
        assert ((trained[key] - tensor).abs() <= 1e-6 + 1e-5 * tensor.abs()).all(), key
        assert not torch.equal(tensor, weights.get(key, weights.get("table.weight"))), f"{key} was not trained"


def test_a_plan_file_keeps_both_ends(models: Path, tmp_path: Path) -> None:
    options = Options(str(models / "two_ends.py"), cluster=Cluster(nodes=3), request=SEPARATE, dry_run=True)
    plan = compile_source(options).plan
    request = read_request(to_json(plan), "plan.json", Request())
    again = compiled(models / "two_ends.py", tmp_path / "out", request)
    assert again == list(plan.sequence)


def test_a_plan_that_breaks_an_order_says_which(models: Path) -> None:
    request = Request(strategy="separate", fc_ops=("places", "head", "table"), conv_workers=3, placement="colocated")
    options = Options(str(models / "two_ends.py"), cluster=Cluster(nodes=3), request=request, dry_run=True)
    with pytest.raises(Exception, match="places reads arange, and would run in an earlier segment"):
        compile_source(options)


def test_a_segment_that_makes_nothing_of_a_batched_tensor_takes_its_size_from_an_input(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        dedent(
            """
            import torch
            from torch import nn

            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.patch, self.fc = nn.Linear(6, 8), nn.Linear(8, 400)
                    self.token = nn.Parameter(torch.randn(1, 1, 8))

                def forward(self, x):
                    h = self.patch(x).relu()
                    token = self.token.expand(h.shape[0], -1, -1) * 2
                    return self.fc(torch.cat([token, h], 1))

            def build_model():
                return Net()

            def example_inputs():
                return (torch.randn(4, 3, 6),)
            """
        )
    )
    request = Request(strategy="separate", fc_ops=("patch", "relu", "cat", "fc"), conv_workers=3, placement="colocated")
    sequence = compiled(tmp_path / "model.py", tmp_path / "out", request)
    assert [role for role, _ in sequence] == ["conv", "fc"]


def test_what_asks_for_the_size_of_the_batch_alone_is_not_put_in_front(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        dedent(
            """
            import torch
            from torch import nn

            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.places, self.fc = nn.Embedding(5000, 16), nn.Linear(16, 4)

                def forward(self, x):
                    ids = torch.arange(9, device=x.device).expand(x.shape[0], 9)
                    h = x + self.places(ids)
                    return self.fc(torch.softmax(h @ h.mT, -1) @ h)

            def build_model():
                return Net()

            def example_inputs():
                return (torch.randn(4, 9, 16),)
            """
        )
    )
    options = Options(str(tmp_path / "model.py"), cluster=Cluster(nodes=3), request=Request(), dry_run=True)
    assert "fc" not in [role for role, _ in compile_source(options).plan.sequence[:1]]
