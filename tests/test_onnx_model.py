"""ONNX files as modules: what exporters write, what is refused, what trains."""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torchvision
from onnx import TensorProto, helper
from torch import fx, nn
from torch.nn import functional as F

from stanza_compiler.compiler import compile_source
from stanza_compiler.errors import LoadError
from stanza_compiler.loader import load
from stanza_compiler.onnx_model import OnnxModel, load_onnx
from stanza_compiler.options import InputSpec, Options
from stanza_compiler.passes.certify import imported
from stanza_compiler.plan import Request
from tests.onnx_graphs import by_onnxruntime, graph_model, saved

node = helper.make_node


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x).mean(1))


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.norm, self.last = nn.LayerNorm(32), nn.LayerNorm(32)
        self.projection = nn.Linear(32, 96)
        self.head = nn.Linear(32, 50, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        batch, length, width = x.shape
        parts = self.projection(self.norm(x)).chunk(3, -1)
        q, k, v = (part.view(batch, length, 4, width // 4).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(self.last(x + y.transpose(1, 2).reshape(batch, length, width)))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.drop = nn.Dropout(0.5)
        self.classifier = nn.Linear(8 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.drop(self.features(x).flatten(1)))


def export(
    model: nn.Module, example: torch.Tensor, path: Path, *, dynamo: bool, any_batch: bool, **options: Any
) -> None:
    """What torch's exporter makes of a model, for any batch size or that of the example."""
    if dynamo and any_batch:
        options["dynamic_shapes"] = ({0: torch.export.Dim("batch")},)
    elif any_batch:
        options |= {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters' own
        torch.onnx.export(model, (example,), path, dynamo=dynamo, verbose=False, **options)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The file of a model made with seed 0, written once."""

    @functools.cache
    def written(make: Callable[[], nn.Module], *, batch: int | None = None, **options: Any) -> Path:
        torch.manual_seed(0)
        path = tmp_path_factory.mktemp("exported") / "model.onnx"
        export(make(), EXAMPLES[make](batch or 2), path, any_batch=batch is None, **options)
        return path

    return written


def images(batch: int) -> torch.Tensor:
    return torch.randn(batch, 3, 8, 8, generator=torch.Generator().manual_seed(batch))


def sequences(batch: int) -> torch.Tensor:
    return torch.randn(batch, 7, 32, generator=torch.Generator().manual_seed(batch))


def tokens(batch: int) -> torch.Tensor:
    return torch.randint(50, (batch, 12), generator=torch.Generator().manual_seed(batch))


def output(module: nn.Module, *args: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = module(*args)
    return result


def imported_from(model: onnx.ModelProto, folder: Path, **options: Any) -> OnnxModel:
    return load_onnx(saved(model, folder), place="model.onnx", **options)


def refusal(model: onnx.ModelProto, folder: Path, **options: Any) -> str:
    with pytest.raises(LoadError) as caught:
        imported_from(model, folder, **options)
    return str(caught.value)


EXAMPLES: dict[Callable[[], nn.Module], Callable[[int], torch.Tensor]] = {}


def convolutions() -> nn.Module:
    return Convolutions().eval()


def encoder() -> nn.Module:
    return Encoder().eval()


def causal() -> nn.Module:
    return Causal().eval()


def alexnet() -> nn.Module:
    return torchvision.models.alexnet(num_classes=10).eval()


EXAMPLES |= {
    convolutions: images,
    encoder: sequences,
    causal: tokens,
    alexnet: lambda batch: torch.randn(batch, 3, 224, 224),
}

# What exporters write


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (convolutions, {"dynamo": True}),
        (convolutions, {"dynamo": False}),
        (encoder, {"dynamo": True}),
        (encoder, {"dynamo": False}),
        (causal, {"dynamo": True}),
        (causal, {"dynamo": True, "opset_version": 23}),
        (causal, {"dynamo": False}),
        pytest.param(alexnet, {"dynamo": True}, marks=pytest.mark.slow),
        pytest.param(alexnet, {"dynamo": False}, marks=pytest.mark.slow),
    ],
)
def test_what_torchs_exporters_write_is_read_right_and_both_front_ends_keep_it(
    make: Callable[[], nn.Module], options: dict[str, Any], exported: Callable[..., Path]
) -> None:
    path, example = exported(make, **options), EXAMPLES[make]
    model = load_onnx(path, place="model.onnx")
    module = model.module.eval()
    program = torch.export.export(
        module, model.args, dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False
    ).module()
    for batch in (2, 3):
        args = example(batch)
        (expected,) = by_onnxruntime(path, [args])
        for run in (module, fx.symbolic_trace(module), program):
            torch.testing.assert_close(output(run, args), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "make", [convolutions, causal, *(pytest.param(make, marks=pytest.mark.slow) for make in (encoder, alexnet))]
)
def test_a_program_compiled_from_a_file_computes_what_onnxruntime_does(
    make: Callable[[], nn.Module], exported: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, args = exported(make, dynamo=True), EXAMPLES[make](5)
    monkeypatch.chdir(tmp_path)
    compile_source(Options(str(path), request=Request(strategy="separate")))
    out = tmp_path / "model_stanza"
    assert not (out / "user_model.py").exists()
    text = "".join(file.read_text(encoding="utf-8") for file in out.glob("*.*"))
    assert str(path.parent) not in text
    assert '"passed": true' in text
    with imported(out) as program:
        result = output(program.build_model().eval(), args)
    torch.testing.assert_close(result, by_onnxruntime(path, [args])[0], rtol=0, atol=1e-4)


def test_layers_keep_their_names_and_values(exported: Callable[..., Path]) -> None:
    path = exported(convolutions, dynamo=False)
    module = load_onnx(path, place="model.onnx").module
    torch.manual_seed(0)
    original = convolutions()
    assert str(module.get_submodule("classifier")) == str(original.classifier)
    assert torch.equal(module.get_parameter("classifier.weight"), original.classifier.weight)


@pytest.mark.parametrize("make", [encoder, *(pytest.param(make, marks=pytest.mark.slow) for make in (causal, alexnet))])
def test_a_file_exported_for_one_sample_serves_any_batch(
    make: Callable[[], nn.Module], exported: Callable[..., Path]
) -> None:
    path, args = exported(make, dynamo=True, batch=1), EXAMPLES[make](3)
    model = load_onnx(path, place="model.onnx")
    assert [arg.shape[0] for arg in model.args] == [4]
    each = [by_onnxruntime(path, [sample[None]])[0] for sample in args]
    torch.testing.assert_close(output(model.module.eval(), args), torch.cat(each), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dynamo", [True, False])
def test_what_an_exporter_merged_because_it_was_equal_is_several_weights_again(
    dynamo: bool, exported: Callable[..., Path]
) -> None:
    path = exported(causal, dynamo=dynamo)
    stored = {tensor.name for tensor in onnx.load(path).graph.initializer}
    assert not {"norm.weight", "last.weight"} <= stored  # both are all ones
    parameters = dict(load_onnx(path, place="model.onnx").module.named_parameters())
    assert {"norm.weight", "norm.bias", "last.weight", "last.bias"} <= set(parameters)
    assert parameters["norm.weight"].data_ptr() != parameters["last.weight"].data_ptr()


def test_merged_weights_of_one_layer_are_told_apart_and_what_is_called_twice_is_not(tmp_path: Path) -> None:
    """As in Swin: two biases of one attention, each merged with others; `twice` is one layer, called twice."""
    adds = [
        ("x", "p.bias", "attention"),
        ("a", "p.bias", "other"),
        ("b", "q.bias", "attention"),
        ("c", "p.bias", "twice"),
    ]
    nodes = [node("Add", [x, bias], [result]) for (x, bias, _), result in zip(adds, "abcd", strict=True)]
    nodes += [node("Add", ["d", "p.bias"], ["e"]), node("Add", ["e", "q.bias"], ["y"])]
    for each, layer in zip(nodes, [*(layer for *_, layer in adds), "twice", "other"], strict=True):
        each.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', '{layer}', 'add']")
    weights = {"p.bias": np.zeros(3, np.float32), "q.bias": np.ones((2, 3), np.float32)}
    module = imported_from(graph_model(nodes, {"x": ("b", 2, 3)}, ["y"], weights), tmp_path).module
    assert {name: tuple(each.shape) for name, each in module.named_parameters()} == {
        "attention.bias": (3,), "other.bias": (3,), "twice.bias": (3,),
        "attention.bias_": (2, 3), "other.bias_": (2, 3),
    }  # fmt: skip
    torch.testing.assert_close(output(module, torch.zeros(1, 2, 3)), torch.full((1, 2, 3), 2.0))


def test_batch_norm_and_dropout_follow_the_training_flag(tmp_path: Path) -> None:
    original, path = Convolutions().train(), tmp_path / "model.onnx"
    mode = torch.onnx.TrainingMode.TRAINING
    export(original, images(4), path, dynamo=False, any_batch=True, training=mode, do_constant_folding=False)
    module = load_onnx(path, place="model.onnx").module
    assert list(module.state_dict()) == list(original.state_dict())
    for training in (True, False):
        torch.manual_seed(1)
        mine = output(module.train(training), images(4))
        torch.manual_seed(1)
        torch.testing.assert_close(mine, output(original.train(training), images(4)))
    torch.testing.assert_close(module.get_buffer("features.1.running_var"), original.features[1].running_var)


# The batch


def test_the_batch_is_where_its_name_is(tmp_path: Path) -> None:
    sizes = {"x": ("time", "batch", 3), "y": (5, "batch"), "z": (2,)}
    nodes = [node("Transpose", ["x"], ["t"], perm=[1, 0, 2]), node("Identity", ["y"], ["u"]), node("Neg", ["z"], ["n"])]
    model = imported_from(graph_model(nodes, sizes, ["t", "u", "n"]), tmp_path, inputs=_specs((7, 4, 3), (5, 4), (2,)))
    assert model.batch_axes == {"x": 1, "y": 1, "z": None}


def _specs(*shapes: tuple[int, ...]) -> list[InputSpec]:
    return [InputSpec(shape) for shape in shapes]


def test_sizes_that_follow_from_the_batch_are_asked_for_and_all_others_are_numbers(tmp_path: Path) -> None:
    """What TorchScript's exporter makes of x.view(x.shape[0] * x.shape[1], -1) and of x / x.shape[0]."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"]),
        node("Gather", ["shape", "one"], ["channels"]),
        node("Mul", ["batch", "channels"], ["rows"]),
        node("Unsqueeze", ["rows", "axes"], ["rows1"]),
        node("Concat", ["rows1", "rest"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["flat"]),
        node("Cast", ["batch"], ["float"], to=TensorProto.FLOAT),
        node("Div", ["flat", "float"], ["y"]),
    ]
    numbers = {"zero": np.int64(0), "one": np.int64(1), "axes": np.array([0]), "rest": np.array([-1])}
    path = saved(graph_model(nodes, {"x": ("n", 3, 4, 5)}, ["y"], numbers), tmp_path)
    module = load_onnx(path, place="model.onnx").module
    for batch in (1, 6):
        x = torch.randn(batch, 3, 4, 5)
        torch.testing.assert_close(output(module, x), by_onnxruntime(path, [x])[0])
    calls = [str(each.target) for each in fx.symbolic_trace(module).graph.nodes if each.op.startswith("call")]
    assert len(calls) == 4  # reshape(-1, 20), size(0), * 1.0, /
    assert module.state_dict() == {}


@pytest.mark.parametrize(
    ("sizes", "axes"),
    [
        ({"x": ("s0", 3), "y": ("s1", 2)}, {"x": 0, "y": 0}),
        ({"x": ("s0", 3), "y": (5, 2)}, {"x": 0, "y": None}),
        ({"x": (None, 3), "y": ("unk__1", 2)}, {"x": 0, "y": 0}),
        ({"x": (2, 3), "y": (2, 2), "z": (7,)}, {"x": 0, "y": 0, "z": None}),
    ],
)
def test_without_a_name_the_batch_is_the_first_axis(
    sizes: dict[str, tuple[Any, ...]], axes: dict[str, int | None], tmp_path: Path
) -> None:
    nodes = [node("Neg", [name], [f"{name}_negative"]) for name in sizes]
    graph = graph_model(nodes, sizes, ["x_negative", "y_negative"])
    assert imported_from(graph, tmp_path).batch_axes == axes


def test_a_batch_whose_samples_mix_is_refused_where_it_was_stored(tmp_path: Path) -> None:
    nodes = [node("ReduceMean", ["x", "axes"], ["m"], keepdims=1), node("Sub", ["x", "m"], ["y"])]
    stored = graph_model(nodes, {"x": (2, 3)}, ["y"], {"axes": np.array([0])})
    assert refusal(stored, tmp_path) == (
        "model.onnx: its batch is fixed to 2: in a larger one a sample gives something else; "
        "export it with a dynamic batch axis"
    )
    free = graph_model(nodes, {"x": ("batch", 3)}, ["y"], {"axes": np.array([0])})
    x = torch.randn(5, 3)
    torch.testing.assert_close(output(imported_from(free, tmp_path).module, x), x - x.mean(0))


def test_given_inputs_have_to_fit(tmp_path: Path) -> None:
    model = graph_model([node("Relu", ["x"], ["y"])], {"x": ("batch", "time", 3)}, ["y"])
    assert refusal(model, tmp_path) == (
        "model.onnx: input x leaves the sizes time free; pass --input for each input, such as 4xtimex3:float32"
    )
    assert imported_from(model, tmp_path, inputs=_specs((2, 9, 3))).args[0].shape == (2, 9, 3)
    for shape in ((2, 9, 4), (2, 3)):
        assert "doesn't fit its input x; it takes batchxtimex3:float32" in refusal(
            model, tmp_path, inputs=_specs(shape)
        )
    assert "has 1 inputs and --input is given 2 times" in refusal(model, tmp_path, inputs=_specs((2, 9, 3), (2, 9, 3)))


# Names and weights


def test_names_stay_what_they_are_wherever_python_allows(tmp_path: Path) -> None:
    names = ["layer.0.weight", "layer", "training", 'say "hi"', "onnx::Mul_12", "a..b", "forward.class"]
    weights = {name: np.arange(3, dtype=np.float32) + index for index, name in enumerate(names)}
    values = ["x", *(f"v{index}" for index in range(len(names)))]
    nodes = [node("Add", [values[index], name], [values[index + 1]]) for index, name in enumerate(names)]
    model = imported_from(graph_model(nodes, {"x": ("b", 3)}, [values[-1]], weights), tmp_path)
    assert {name: tensor[0].item() for name, tensor in model.module.state_dict().items()} == {
        "layer.0.weight": 0, "layer_": 1, "training_": 2, 'say "hi"': 3, "onnx::Mul_12": 4, "a._.b": 5,
        "forward_.class": 6,
    }  # fmt: skip
    torch.testing.assert_close(output(model.module, torch.zeros(1, 3)), torch.tensor([[21.0, 28.0, 35.0]]))


def test_inputs_are_named_as_python_can_call_them(tmp_path: Path) -> None:
    nodes = [node("Sum", ["input.1", "class", "1", "x/y"], ["z"])]
    sizes = dict.fromkeys(("input.1", "class", "1", "x/y"), ("batch", 2))
    with load(Options(str(saved(graph_model(nodes, sizes, ["z"]), tmp_path)))) as source:
        assert [leaf.name for leaf in source.call.leaves] == ["input_1", "input_class", "input_1_2", "x_y"]


def test_weights_train_and_constants_do_not(tmp_path: Path) -> None:
    weights = {
        "w": np.ones((3, 3), np.float32),
        "val_1": np.float32(0.1),
        "val_2": np.full((3,), 2, np.float32),
        "val_3": np.arange(3, dtype=np.float32),
        "mask": np.array([0, 0, -np.inf], np.float32),
        "steps": np.array([1, 2, 3]),
        "marked": np.arange(3, dtype=np.float32),
    }
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        *(node("Add", [one, other], [result]) for one, other, result in [
            ("a", "val_1", "b"), ("b", "val_2", "c"), ("c", "val_3", "d"), ("d", "mask", "e"), ("e", "marked", "f"),
        ]),
        node("Cast", ["steps"], ["s"], to=TensorProto.FLOAT),
        node("Add", ["f", "s"], ["y"]),
    ]  # fmt: skip
    graph = graph_model(nodes, {"x": ("b", 3)}, ["y"], weights)
    noted = graph.graph.value_info.add(name="marked")
    noted.metadata_props.add(key="pkg.torch.export.graph_signature.InputSpec.kind", value="BUFFER")
    module = imported_from(graph, tmp_path).module
    assert [name for name, _ in module.named_parameters()] == ["w", "val_3"]
    assert list(module.state_dict()) == ["w", "val_3", "val_2", "mask", "marked"]
    assert "0.1" in str(fx.symbolic_trace(module).graph)


def test_where_no_weights_are_stored_as_such_constants_are_the_weights(tmp_path: Path) -> None:
    value = helper.make_tensor("any", TensorProto.FLOAT, [2, 2], [1, 2, 3, 4])
    nodes = [node("Constant", [], ["w_0"], value=value), node("MatMul", ["x", "w_0"], ["y"])]
    module = imported_from(graph_model(nodes, {"x": ("b", 2)}, ["y"]), tmp_path).module
    assert module.get_parameter("w_0").tolist() == [[1, 2], [3, 4]]


def test_a_node_is_a_line_of_the_file(tmp_path: Path) -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["y"])]
    path = saved(graph_model(nodes, {"x": ("b", 2)}, ["y"]), tmp_path)
    module = load_onnx(path, place="model.onnx").module
    with pytest.raises(TypeError) as caught:
        module("no tensor")
    assert [(entry.path, entry.lineno + 1) for entry in caught.traceback if entry.path == path] == [(path, 1)]


# What a file may hold besides nodes


def test_functions_of_the_file_are_written_out(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 20)]
    body = [node("Relu", ["a"], ["r"]), node("Add", ["r", "b"], ["c"])]
    function = helper.make_function("mine", "RectifyAndAdd", ["a", "b"], ["c"], body, opsets)
    call = node("RectifyAndAdd", ["x", "w"], ["y"], domain="mine")
    weights = {"w": np.array([1, 2], np.float32)}
    graph = graph_model([call], {"x": ("b", 2)}, ["y"], weights, functions=[function], domains=["mine"])
    model = imported_from(graph, tmp_path)
    torch.testing.assert_close(output(model.module, torch.tensor([[-1.0, 1.0]])), torch.tensor([[1.0, 3.0]]))


def test_a_branch_that_is_decided_is_taken_and_another_refused(tmp_path: Path) -> None:
    branches = {
        f"{name}_branch": helper.make_graph([node(op, ["x"], [name])], name, [], [onnx.ValueInfoProto(name=name)])
        for name, op in (("then", "Neg"), ("else", "Abs"))
    }
    decided = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "one"], ["n"]), node("Equal", ["n", "two"], ["is"])]
    graph = graph_model(
        [*decided, node("If", ["is"], ["y"], **branches)], {"x": ("b", 2)}, ["y"],
        {"one": np.int64(1), "two": np.int64(2)},
    )  # fmt: skip
    x = torch.tensor([[-1.0, 2.0]])
    torch.testing.assert_close(output(imported_from(graph, tmp_path).module, x), -x)
    undecided = [node("ReduceSum", ["x"], ["s"], keepdims=0), node("Cast", ["s"], ["is"], to=TensorProto.BOOL)]
    graph = graph_model([*undecided, node("If", ["is"], ["y"], name="fork", **branches)], {"x": ("b", 2)}, ["y"])
    assert "node 'fork', a If, branches on what the model computes" in refusal(graph, tmp_path)


def external(folder: Path, location: str) -> onnx.ModelProto:
    weights = {"w": np.arange(4, dtype=np.float32)}
    model = graph_model([node("Mul", ["x", "w"], ["y"])], {"x": ("b", 4)}, ["y"], weights)
    tensor = model.graph.initializer[0]
    (folder / "weights.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return model


def test_weights_may_lie_beside_the_file(tmp_path: Path) -> None:
    module = imported_from(external(tmp_path, "weights.bin"), tmp_path).module
    assert module.get_parameter("w").tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "location", ["../weights.bin", "/etc/hostname", "link.bin", "linked/weights.bin", "", "absent.bin"]
)
def test_weights_elsewhere_are_refused(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    model = external(tmp_path, location)
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    (folder / "linked").symlink_to(tmp_path)
    message = refusal(model, folder)
    assert message.startswith(f"model.onnx: the data of 'w' are in {location!r}")


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ({"op_type": "NonZero"}, "node 'odd', a NonZero, gives a tensor whose size depends on the numbers in another"),
        ({"op_type": "RandomNormalLike"}, "node 'odd' is a RandomNormalLike, which can't be imported; "),
        ({"op_type": "Gelu", "domain": "com.microsoft"}, "node 'odd' is a Gelu of the domain 'com.microsoft', "),
        ({"op_type": "Relu", "alpha": 1.0}, "it is no valid ONNX model: "),
        ({"op_type": "Flatten", "axis": 7}, "it is no valid ONNX model: "),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_refused_by_name(op: dict[str, Any], message: str, tmp_path: Path) -> None:
    nodes = [node(inputs=["x"], outputs=["y"], name="odd", **op)]
    graph = graph_model(nodes, {"x": ("b", 2)}, ["y"], domains=[op["domain"]] if "domain" in op else [])
    assert refusal(graph, tmp_path).startswith(f"model.onnx: {message}")


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x0a\x12", bytes(range(256))])
def test_a_file_that_is_no_model_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=r"^model\.onnx: no ONNX model can be read from it"):
        load_onnx(path, place="model.onnx")
