"""From a model file to trained weights: compiled, launched as ranks, held against a loop written here."""

import importlib
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from stanza_compiler.cluster import Cluster
from stanza_compiler.compiler import compile_source
from stanza_compiler.options import Options
from stanza_compiler.passes.certify import imported
from stanza_compiler.plan import Request
from tests.launch import run

STEPS = 8
EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def program(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("end_to_end") / "out"
    options = Options(
        str(models / "small_cnn.py"), out=out, cluster=Cluster(nodes=3), request=Request(strategy="separate")
    )
    compile_source(options)
    return out


def one_process(program: Path, global_batch: int) -> dict[str, Tensor]:
    """SGD with momentum by hand: lr 0.05, momentum 0.9, items 0, 1, 2, ... of 75, a short batch at the end."""
    generator = torch.Generator().manual_seed(5)
    images, labels = torch.randn(75, 3, 12, 12, generator=generator), torch.randint(10, (75,), generator=generator)
    w = {}
    for stage in ("conv_stage", "fc_stage"):
        w |= torch.load(program / "weights" / f"{stage}.pt", weights_only=True)
    w = {name: tensor.clone().requires_grad_() for name, tensor in w.items()}
    velocity: dict[str, Tensor] = {}
    position = 0
    for _ in range(STEPS):
        stop = min(position + global_batch, 75)
        h = F.max_pool2d(
            F.conv2d(images[position:stop], w["features.0.weight"], w["features.0.bias"], padding=1).relu(), 2
        )
        h = F.max_pool2d(F.conv2d(h, w["features.3.weight"], w["features.3.bias"], padding=1).relu(), 2).flatten(1)
        h = F.linear(h, w["classifier.0.weight"], w["classifier.0.bias"]).relu()
        h = F.linear(h, w["classifier.2.weight"], w["classifier.2.bias"])
        loss = F.cross_entropy(h, labels[position:stop])
        gradients = torch.autograd.grad(loss, list(w.values()))
        with torch.no_grad():
            for name, gradient in zip(w, gradients, strict=True):
                velocity[name] = velocity[name] * 0.9 + gradient if name in velocity else gradient
                w[name] -= 0.05 * velocity[name]
        position = 0 if stop == 75 else stop
    return {name: tensor.detach() for name, tensor in w.items()}


@pytest.mark.parametrize(
    ("ranks", "batch", "flags", "global_batch"),
    [
        (3, 16, ("--placement", "dedicated", "--conv-workers", 2, "--fc-workers", 1), 32),
        (5, 8, ("--placement", "dedicated", "--conv-workers", 3, "--fc-workers", 2), 24),
        (3, 8, ("--placement", "colocated", "--fc-workers", 1), 24),
        (3, 8, ("--placement", "colocated", "--fc-workers", 2), 24),
    ],
    ids=["2+1", "3+2", "3 colocated, 1 host", "3 colocated, 2 hosts"],
)
def test_separated_training_is_one_process_training(
    program: Path, tmp_path: Path, ranks: int, batch: int, flags: tuple[object, ...], global_batch: int
) -> None:
    export = tmp_path / "trained.pt"
    run(program, ranks, "--no-shuffle", "--steps", STEPS, "--batch-size", batch, "--export", export, *flags)
    trained = torch.load(export, weights_only=True)
    expected = one_process(program, global_batch)
    assert set(trained) == set(expected)
    for name, tensor in expected.items():
        assert ((trained[name] - tensor).abs() <= 1e-6 + 1e-5 * tensor.abs()).all(), name


def held_out_accuracy(out: Path, weights: Path) -> float:
    """How many of the 1,000 held-out digits the emitted whole model gets right with these weights."""
    with imported(out) as whole_model:
        model = whole_model.build_model()
        digits = importlib.import_module("user_model").make_eval_dataset()
    model.load_state_dict(torch.load(weights, weights_only=True))
    model.eval()
    images, labels = zip(*(digits[index] for index in range(len(digits))), strict=True)
    with torch.no_grad():
        guesses = model(torch.stack([torch.as_tensor(image) for image in images])).argmax(1)
    return (guesses == torch.tensor([int(label) for label in labels])).float().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_real_digits_are_learned_as_well_as_in_one_process(tmp_path: Path, seed: int) -> None:
    out = tmp_path / "out"
    example = Path(__file__).parents[1] / "examples" / "mnist_cnn.py"
    compile_source(Options(str(example), out=out, cluster=Cluster(nodes=3), request=Request(strategy="separate")))
    flags = ("--epochs", 8, "--seed", seed)
    separate = ("--placement", "colocated", "--fc-workers", 1, "--batch-size", 32)
    run(out, 1, *flags, "--single-process", "--global-batch-size", 96, "--export", tmp_path / "one.pt")
    one = held_out_accuracy(out, tmp_path / "one.pt")
    for boundary, gradient in (("fp32", "none"), ("bf16", "bf16"), ("fp16", "fp16"), ("int8", "none")):
        codecs = ("--boundary-dtype", boundary, "--gradient-codec", gradient)
        run(out, 3, *flags, *separate, *codecs, "--export", tmp_path / "separate.pt")
        separated = held_out_accuracy(out, tmp_path / "separate.pt")
        assert separated >= 0.97, (boundary, gradient)
        assert abs(separated - one) <= 0.005, (boundary, gradient)


def test_a_face_head_shared_by_three_hosts_trains_like_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FACE_CLASSES", "1003")
    plan = compile_source(
        Options(
            str(EXAMPLES / "face_head.py"),
            out=tmp_path / "out",
            cluster=Cluster(nodes=3),
            request=Request(strategy="separate", placement="sharded", batch_size=4),
        )
    ).plan
    assert plan.certificate is not None
    assert plan.sharding.columns == {"people": 1003}
    sharded = plan.predictions["sharded"]
    assert sharded is not None
    flags = ("--steps", 3, "--export", tmp_path / "a.pt", "--metrics", tmp_path / "m.jsonl")
    run(tmp_path / "out", 3, *flags)
    run(tmp_path / "out", 1, "--single-process", "--steps", 3, "--export", tmp_path / "b.pt")
    found, expected = (torch.load(tmp_path / name, weights_only=True) for name in ("a.pt", "b.pt"))
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert ((found[name] - tensor).abs() <= 1e-6 + 1e-5 * tensor.abs()).all(), name
    # What was predicted to be sent is sent, but for what a ring of three rounds down.
    sent = [json.loads(line)["bytes_sent"] for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert sent == pytest.approx([sharded.bytes_per_step] * 3, abs=100)
