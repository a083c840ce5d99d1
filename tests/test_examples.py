"""The example models against published figures, and the digits against what they promise."""

import importlib.util
import socket
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).parent.parent / "examples"
# torchvision's own tables of its models.
PUBLISHED_PARAMETERS = {"alexnet": 61_100_840, "vgg16": 138_357_544, "resnet50": 25_557_032}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("an example wants the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_the_classic_networks_have_their_published_size(name: str) -> None:
    example = _example(name)
    with torch.device("meta"):
        model = example.build_model()
        (images,) = example.example_inputs()
        assert model(images).shape == (4, 1000)
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED_PARAMETERS[name]
    assert images.shape[1:] == (3, 224, 224)


@pytest.mark.parametrize("name", ["mnist_cnn", "two_tower", "gpt_small", "lstm_lm", "dlrm"])
def test_every_parameter_of_the_small_examples_learns(name: str) -> None:
    example = _example(name)
    model = example.build_model()
    example.loss_fn(model(*example.example_inputs()), example.example_targets()).backward()
    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    example.make_optimizer(model.parameters()).step()
    assert [key for key, parameter in model.named_parameters() if torch.equal(before[key], parameter)] == []


def test_the_digit_network_is_seeded_and_its_classifier_is_big() -> None:
    example = _example("mnist_cnn")
    first, again = example.build_model().state_dict(), example.build_model().state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    sizes = {name: parameter.numel() for name, parameter in example.build_model().named_parameters()}
    classifier = sum(size for name, size in sizes.items() if name.startswith(("hidden", "output")))
    assert classifier > 0.97 * sum(sizes.values())


def test_the_digits_are_real_shuffled_and_disjoint() -> None:
    example = _example("mnist_cnn")
    training, held_out = example.make_dataset(), example.make_eval_dataset()
    assert (len(training), len(held_out)) == (4_000, 1_000)
    for items in (training, held_out):
        assert {label for _, label in items} == set(range(10))
        assert len({label for _, label in items[:50]}) == 10  # the file itself is sorted by class
        for image, label in items:
            assert image.shape == (1, 28, 28)
            assert image.dtype is torch.float32
            assert type(label) is int
            assert 0 <= image.min() < image.max() <= 1
    seen = {image.numpy().tobytes() for image, _ in training}
    assert not any(image.numpy().tobytes() in seen for image, _ in held_out)
    image, label = training[0]
    again, same_label = example.make_dataset()[0]
    assert torch.equal(image, again)
    assert label == same_label


def test_the_face_head_is_large_and_its_backbone_small(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        model = _example("face_head").build_model()
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert sizes["people.weight"] == 200_000 * 256
    assert sum(size for name, size in sizes.items() if name.startswith("backbone")) == 167_104
    monkeypatch.setenv("FACE_CLASSES", "50")
    assert _example("face_head").build_model().people.out_features == 50
