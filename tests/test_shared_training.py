"""Programs whose two stages hold the same parameters, trained as ranks and held against a loop written here."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stanza_compiler.cluster import Cluster
from stanza_compiler.compiler import compile_source
from stanza_compiler.options import Options
from stanza_compiler.plan import Request
from tests.launch import edit, launch, run

State = dict[str, Tensor]

# 22 items in tens: the third batch is of 2, so the last CONV rank of three has none, nor has its host of two.
LENGTH, BATCH, STEPS = 22, 10, 5

# Every kind of tie: a layer's weight in another layer, layers called on both sides, bare parameters. Of them `quiet`
# gets no gradient, `still` is frozen. The optimiser tells parameters apart by their names in the whole model.
MODEL = """
    import os
    from pathlib import Path

    import torch
    from torch import nn
    from torch.nn import functional as F


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(50, 6)
            self.gain = nn.Parameter(torch.linspace(0.5, 1.5, 6))
            self.still = nn.Parameter(torch.linspace(1.0, 2.0, 6), requires_grad=False)
            self.conv = nn.Conv1d(6, 6, 3, padding=1)
            self.mix, self.quiet = nn.Linear(6, 6), nn.Linear(6, 6)
            self.head = nn.Linear(6, 50)
            self.head.weight = self.emb.weight

        def forward(self, ids):
            h = self.emb(ids) * self.gain
            h = h + self.quiet(h).detach()
            h = self.conv(h.transpose(1, 2)).transpose(1, 2).tanh()
            h = self.mix(h) * self.gain * self.still
            h = h + self.quiet(h).detach()
            h = self.mix(h.sin()) * self.gain * self.still
            return self.head(h)


    def build_model():
        return Net()


    def example_inputs():
        return (torch.randint(50, (4, 7)),)


    def example_targets():
        return torch.randint(50, (4, 7))


    def loss_fn(outputs, targets):
        valid = targets >= 0
        return F.cross_entropy(outputs[valid], targets[valid], reduction="sum"), valid.sum()


    def make_optimizer(named_parameters):
        groups = [
            {"params": [p], "lr": 0.05 if name == "gain" else 0.1, "weight_decay": 0.01 if "emb" in name else 0.0}
            for name, p in named_parameters
        ]
        if next(iter(named_parameters))[1].dtype == torch.float64:
            optimizer = torch.optim.AdamW(groups)
        else:
            optimizer = torch.optim.SGD(groups, momentum=0.9)
        optimizer.register_step_post_hook(lambda *_: save(optimizer, named_parameters))
        return optimizer


    def save(optimizer, named_parameters):
        folder = os.environ.get("COPIES")
        if folder is not None:
            states = {name: (p.detach(), optimizer.state.get(p, {})) for name, p in named_parameters}
            torch.save(states, Path(folder) / f"{os.environ['RANK']}-{id(optimizer)}.pt")


    def make_dataset():
        generator = torch.Generator().manual_seed(5)
        ids = torch.randint(50, (22, 7), generator=generator)
        return [(ids[k], torch.randint(-12, 50, (7,), generator=generator)) for k in range(22)]
    """
HEAD_OF_TWO = ("quiet#2", "detach_1", "add_1", "sin", "mix#2", "mul_3", "mul_4", "head")
FRONT = ("emb", "mul", "quiet", "detach", "add")
PLANS = {
    "conv-fc": (HEAD_OF_TWO, {"emb.weight", "gain", "still", "mix.weight", "mix.bias", "quiet.weight", "quiet.bias"}),
    "fc-conv": (FRONT, {"emb.weight", "gain", "quiet.weight", "quiet.bias"}),
    "fc-conv-fc": ((*FRONT, *HEAD_OF_TWO), {"gain", "still", "mix.weight", "mix.bias"}),
}


def loss_of(w: State, ids: Tensor, targets: Tensor) -> Tensor:
    h = w["emb.weight"][ids] * w["gain"]
    h = h + F.linear(h, w["quiet.weight"], w["quiet.bias"]).detach()
    h = F.conv1d(h.transpose(1, 2), w["conv.weight"], w["conv.bias"], padding=1).transpose(1, 2).tanh()
    h = F.linear(h, w["mix.weight"], w["mix.bias"]) * w["gain"] * w["still"]
    h = h + F.linear(h, w["quiet.weight"], w["quiet.bias"]).detach()
    h = F.linear(h.sin(), w["mix.weight"], w["mix.bias"]) * w["gain"] * w["still"]
    scores = F.linear(h, w["emb.weight"], w["head.bias"])
    return F.cross_entropy(scores[targets >= 0], targets[targets >= 0])


Update = Callable[[dict[str, Tensor], Tensor, Tensor, str], Tensor]


def sgd(state: dict[str, Tensor], w: Tensor, gradient: Tensor, name: str) -> Tensor:
    change = gradient + (0.01 if name == "emb.weight" else 0.0) * w
    state["momentum"] = 0.9 * state["momentum"] + change if "momentum" in state else change
    return w - (0.05 if name == "gain" else 0.1) * state["momentum"]


def adamw(state: dict[str, Tensor], w: Tensor, gradient: Tensor, name: str) -> Tensor:
    """Loshchilov & Hutter, arXiv 1711.05101: decay apart from the gradient."""
    lr, decay = (0.05 if name == "gain" else 0.1), (0.01 if name == "emb.weight" else 0.0)
    steps = state["steps"] = state.get("steps", torch.zeros(())) + 1
    state["m"] = 0.9 * state.get("m", torch.zeros_like(w)) + 0.1 * gradient
    state["v"] = 0.999 * state.get("v", torch.zeros_like(w)) + 0.001 * gradient**2
    m, v = state["m"] / (1 - 0.9 ** steps.item()), state["v"] / (1 - 0.999 ** steps.item())
    return w * (1 - lr * decay) - lr * m / (v.sqrt() + 1e-8)


def one_process(initial: State, loss: Callable[[State, Tensor, Tensor], Tensor], update: Update) -> State:
    """Items 0, 1, 2, ... in tens, a short batch at the end of each epoch; what gets no gradient stays."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(50, (LENGTH, 7), generator=generator)
    targets = torch.stack([torch.randint(-12, 50, (7,), generator=generator) for _ in range(LENGTH)])
    w, states, position = dict(initial), {name: {} for name in initial}, 0  # type: ignore[var-annotated]
    for _ in range(STEPS):
        stop = min(position + BATCH, LENGTH)
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in w.items()}
        value = loss(leaves, ids[position:stop], targets[position:stop])
        gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        for name, gradient in zip(w, gradients, strict=True):
            if gradient is not None and name != "still":
                w[name] = update(states[name], w[name], gradient, name)
        position = 0 if stop == LENGTH else stop
    return w


def compiled(folder: Path, text: str, fc_ops: tuple[str, ...]) -> Path:
    (folder / "model.py").write_text(dedent(text), encoding="utf-8")
    request = Request("separate", "dedicated", conv_workers=2, fc_workers=1, fc_ops=fc_ops)
    compile_source(Options(str(folder / "model.py"), out=folder / "out", cluster=Cluster(nodes=3), request=request))
    return folder / "out"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Path]:
    """The program of an order, in single or double precision, compiled once."""
    known: dict[tuple[str, bool], Path] = {}

    def program(order: str, double: bool = False) -> Path:
        if (order, double) not in known:
            text = MODEL.replace("return Net()", "return Net().double()") if double else MODEL
            known[order, double] = compiled(tmp_path_factory.mktemp("shared"), text, PLANS[order][0])
        return known[order, double]

    return program


def initial_weights(folder: Path) -> State:
    w: State = {}
    for stage in ("conv_stage", "fc_stage"):
        w |= torch.load(folder / "weights" / f"{stage}.pt", weights_only=True)
    head = w.pop("head.weight")
    w.setdefault("emb.weight", head)
    return w


def trained(folder: Path, to: Path, world_size: int, *flags: object) -> State:
    """The exported weights; all copies of a parameter, and the optimisers' states of them, are equal to the bit."""
    (to / "copies").mkdir()
    length = ("--no-shuffle", "--steps", STEPS, "--global-batch-size", BATCH)
    files = ("--export", to / "a.pt", "--metrics", to / "m.jsonl")
    run(folder, world_size, *length, *flags, *files, COPIES=str(to / "copies"))
    copies: dict[str, list[tuple[Tensor, dict[str, Tensor]]]] = {}
    for path in sorted((to / "copies").iterdir()):
        for name, copy in torch.load(path, weights_only=True).items():
            copies.setdefault(name, []).append(copy)
    for name, ((first, state), *others) in copies.items():
        for other, other_state in others:
            assert torch.equal(first, other), name
            assert state.keys() == other_state.keys(), name
            assert all(torch.equal(value, other_state[key]) for key, value in state.items() if value is not None), name
    loaded: State = torch.load(to / "a.pt", weights_only=True)
    assert all(torch.equal(loaded[name], several[0][0]) for name, several in copies.items())
    return loaded


def assert_close(found: State, expected: State, absolute: float, relative: float) -> None:
    assert set(found) == {*expected, "head.weight"}
    for name, tensor in {**expected, "head.weight": expected["emb.weight"]}.items():
        excess = (found[name] - tensor).abs() - (absolute + relative * tensor.abs())
        assert excess.max() <= 0, f"{name} is off by {(found[name] - tensor).abs().max():.3g}"


@pytest.mark.parametrize("order", sorted(PLANS))
@pytest.mark.parametrize(
    ("world_size", "flags"),
    [
        (3, ("--conv-workers", 2)),
        (5, ("--conv-workers", 3, "--fc-workers", 2)),
        (3, ("--placement", "colocated", "--fc-workers", 1)),
        (3, ("--placement", "colocated", "--fc-workers", 2)),
    ],
    ids=["2+1", "3+2", "3-colocated-1-host", "3-colocated-2-hosts"],
)
def test_a_parameter_of_both_roles_trains_as_in_one_process(
    programs: Callable[..., Path], tmp_path: Path, order: str, world_size: int, flags: tuple[object, ...]
) -> None:
    folder = programs(order)
    weights = initial_weights(folder)
    found = trained(folder, tmp_path, world_size, *flags)
    expected = one_process(weights, loss_of, sgd)
    assert_close(found, expected, 1e-6, 1e-5)
    for name, tensor in expected.items():
        assert torch.equal(tensor, weights[name]) == name.startswith(("quiet", "still")), name
    # One tensor under two names.
    assert found["head.weight"].data_ptr() == found["emb.weight"].data_ptr()


@pytest.mark.parametrize(
    ("order", "world_size", "flags"),
    [
        ("conv-fc", 5, ("--conv-workers", 3, "--fc-workers", 2)),
        ("fc-conv", 3, ("--placement", "colocated", "--fc-workers", 2)),
        ("fc-conv-fc", 3, ("--placement", "colocated", "--fc-workers", 1)),
    ],
)
def test_adamw_in_double_precision_is_one_process_training(
    programs: Callable[..., Path], tmp_path: Path, order: str, world_size: int, flags: tuple[object, ...]
) -> None:
    folder = programs(order, True)
    found = trained(folder, tmp_path, world_size, *flags)
    assert_close(found, one_process(initial_weights(folder), loss_of, adamw), 1e-9, 0.0)


def test_what_a_step_sends_for_shared_parameters_is_counted(programs: Callable[..., Path], tmp_path: Path) -> None:
    run(programs("conv-fc"), 3, "--steps", 1, "--global-batch-size", BATCH, "--metrics", tmp_path / "m.jsonl")
    (line,) = map(json.loads, (tmp_path / "m.jsonl").read_text().splitlines())
    # by hand, for 10 items of 7 tokens: targets of 8 bytes, 6 floats and their gradient a token; a ring of two over the
    # 114 parameters of conv, a ring of three over the 348 of emb, gain and mix; quiet and still are never sent
    assert line["bytes_sent"] == 70 * (8 + 2 * 4 * 6) + 2 * 1 * 4 * 114 + 2 * 2 * 4 * 348


def test_the_whole_model_in_one_process_has_one_parameter_of_each(
    programs: Callable[..., Path], tmp_path: Path
) -> None:
    folder = programs("conv-fc")
    found = trained(folder, tmp_path, 1, "--single-process")
    assert_close(found, one_process(initial_weights(folder), loss_of, sgd), 1e-6, 1e-5)


def test_stages_that_would_update_a_copy_differently_say_so_before_training(tmp_path: Path) -> None:
    # The last parameter is quiet.bias in CONV, head.bias in FC.
    by_place = MODEL.replace('0.05 if name == "gain" else 0.1', "0.05 if p is named_parameters[-1][1] else 0.1")
    folder = compiled(tmp_path, by_place, PLANS["conv-fc"][0])
    apart = launch(folder, 3, "--steps", 2, "--conv-workers", 2)
    together = launch(folder, 3, "--steps", 2, "--placement", "colocated", "--fc-workers", 2)
    assert [result.status for result in (*apart, *together)] == [1] * 6
    for result in (*apart, together[0], together[2]):
        told = result.err.strip().splitlines()[-1]
        assert "step 0: DisagreementError: " in told
        assert "as the optimiser of quiet.bias, which both stages hold, SGD(" in told
        assert "lr=0.05" in told
        assert "lr=0.1" in told


# A sparse table in both stages, one that is the other's dense head, and a parameter that gets a gradient in CONV alone.
# All that CONV trains is shared: DistributedDataParallel has nothing to do.
SPARSE = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.both, self.emb = nn.Embedding(50, 6, sparse=True), nn.Embedding(50, 6, sparse=True)
            self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 6))
            self.mix, self.head = nn.Linear(6, 6), nn.Linear(6, 50)
            self.head.weight = self.emb.weight

        def forward(self, ids):
            h = self.both(ids) + self.emb(ids) * self.scale
            h = self.mix(h).tanh() * self.scale.detach() + self.both(ids)
            return self.head(h)
"""
SPARSE_MODEL = (
    MODEL[: MODEL.index("    class Net")]
    + SPARSE
    + MODEL[MODEL.index("\n    def build_model") :].replace("momentum=0.9", "momentum=0.0").replace("0.01 if", "0.0 if")
)


def sparse_loss(w: State, ids: Tensor, targets: Tensor) -> Tensor:
    h = w["both.weight"][ids] + w["emb.weight"][ids] * w["scale"]
    h = F.linear(h, w["mix.weight"], w["mix.bias"]).tanh() * w["scale"].detach() + w["both.weight"][ids]
    scores = F.linear(h, w["emb.weight"], w["head.bias"])
    return F.cross_entropy(scores[targets >= 0], targets[targets >= 0])


@pytest.fixture(scope="module")
def sparse_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fc_ops = ("mix", "tanh", "detach", "mul_1", "both#2", "add_1", "head")
    return compiled(tmp_path_factory.mktemp("sparse"), SPARSE_MODEL, fc_ops)


@pytest.mark.parametrize(
    ("world_size", "flags"),
    [
        (2, ("--conv-workers", 1)),
        (5, ("--conv-workers", 3, "--fc-workers", 2)),
        (3, ("--placement", "colocated", "--fc-workers", 2)),
    ],
    ids=["1+1", "3+2", "3-colocated-2-hosts"],
)
def test_sparse_gradients_of_both_roles_add_up(
    sparse_program: Path, tmp_path: Path, world_size: int, flags: tuple[object, ...]
) -> None:
    weights = initial_weights(sparse_program)
    expected = one_process(weights, sparse_loss, lambda _, w, gradient, name: w - 0.1 * gradient)
    assert_close(trained(sparse_program, tmp_path, world_size, *flags), expected, 1e-6, 1e-5)
    assert not torch.equal(weights["scale"], expected["scale"])


def test_a_table_that_is_sparse_in_both_roles_stays_sparse(sparse_program: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(sparse_program, folder)
    hooked = """
        optimizer.register_step_pre_hook(lambda *_: check(named_parameters))
        return optimizer


    def check(named_parameters):
        forms = {name: p.grad.is_sparse for name, p in named_parameters if p.grad is not None}
        assert forms["both.weight"] and not forms["emb.weight"], forms
    """
    edit(folder / "user_model.py", "\n    return optimizer\n", dedent(hooked))
    run(folder, 3, "--steps", 3, "--placement", "colocated", "--fc-workers", 2)
