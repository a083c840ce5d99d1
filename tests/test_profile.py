"""FLOPs, bytes, batch axes and flags of every op, against figures by hand."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from stanza_compiler.errors import ProfileError
from stanza_compiler.opgraph import Op, OpGraph
from stanza_compiler.passes.profile import Profile, profile
from stanza_compiler.passes.trace import trace
from tests.source_of import source_of

KIB4 = torch.ones(2, 1024)


class Calling(nn.Module):
    """A model whose forward is a function; its parameters come from `held`."""

    def __init__(self, function: Callable[..., Any], **held: nn.Module | nn.Parameter | torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in held.items():
            if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def profiled(model: nn.Module, *inputs: Any, **options: Any) -> Profile:
    source = source_of(model, *inputs, **options)
    return profile(source, trace(source, verify=False))


def graph_of(model: nn.Module, *inputs: Any, **options: Any) -> OpGraph:
    return profiled(model, *inputs, **options).graph


def only(model: nn.Module, *inputs: Any) -> Op:
    (op,) = graph_of(nn.Sequential(model), *inputs).ops
    return op


@pytest.mark.parametrize(
    ("name", "conv", "fc", "parameters"),
    [
        ("alexnet", 1_311_133_056, 117_243_904, 61_100_840),
        ("vgg16", 30_693_261_312, 247_267_328, 138_357_544),
    ],
)
def test_published_networks_have_their_published_figures_without_weights_in_memory(
    name: str, conv: int, fc: int, parameters: int
) -> None:
    with torch.device("meta"):
        model = torchvision.models.get_model(name)
        graph = graph_of(model, torch.empty(4, 3, 224, 224))
    assert sum(op.forward_flops for op in graph.ops if op.name.startswith("features")) == conv
    assert sum(op.forward_flops for op in graph.ops if op.name.startswith("classifier")) == fc
    assert graph.forward_flops == conv + fc
    assert graph.constant_flops == 0
    assert sum(parameter.elements for parameter in graph.parameters) == parameters
    assert graph.parameter_bytes == 4 * parameters


def test_resnet50_has_its_published_number_of_parameters() -> None:
    with torch.device("meta"):
        graph = graph_of(torchvision.models.resnet50(), torch.empty(2, 3, 64, 64))
    assert sum(parameter.elements for parameter in graph.parameters) == 25_557_032
    # 53 BatchNorm layers, 26,560 channels: running mean, running variance, and a counter each
    assert graph.buffer_bytes == 4 * 2 * 26_560 + 8 * 53


@pytest.mark.parametrize(
    ("module", "sizes", "flops"),
    [
        (nn.Linear(3, 5), (3,), 2 * 3 * 5),
        (nn.Linear(3, 5, bias=False), (7, 3), 2 * 7 * 3 * 5),
        (nn.Conv2d(4, 8, 3, padding=1), (4, 6, 6), 2 * 36 * 8 * 4 * 9),
        (nn.Conv2d(4, 8, 3, padding=1, groups=2), (4, 6, 6), 2 * 36 * 8 * 2 * 9),
        (nn.Conv2d(4, 4, 3, groups=4), (4, 6, 6), 2 * 16 * 4 * 1 * 9),
        (nn.Conv2d(4, 8, 3, stride=2, dilation=2), (4, 9, 9), 2 * 9 * 8 * 4 * 9),
        (nn.ConvTranspose2d(4, 8, 2, stride=2), (4, 5, 5), 2 * 25 * 4 * 8 * 4),
        (nn.Conv1d(4, 8, 3), (4, 10), 2 * 8 * 8 * 4 * 3),
        (nn.Conv3d(2, 4, (1, 2, 3)), (2, 3, 4, 5), 2 * 27 * 4 * 2 * 6),
        (nn.ReLU(), (9,), 0),
        (nn.BatchNorm2d(4), (4, 6, 6), 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_layers_forward_flops_are_two_per_multiply_add(module: nn.Module, sizes: tuple[int, ...], flops: int) -> None:
    assert only(module, torch.ones(2, *sizes)).forward_flops == flops


def test_attention_costs_its_two_matrix_products_on_a_cpu_too() -> None:
    heads, tokens, width = 2, 5, 4
    query = torch.ones(3, heads, tokens, width)
    model = Calling(lambda self, q, k, v: F.scaled_dot_product_attention(q, k, v))
    (op,) = graph_of(model, query, query, query).ops
    assert op.forward_flops == 2 * (2 * heads * tokens * tokens * width)
    assert op.uncounted == ()


def test_multihead_attention_adds_its_four_projections() -> None:
    tokens, width = 5, 8
    model = Calling(lambda self, x: self.attention(x, x, x)[0], attention=nn.MultiheadAttention(8, 2, batch_first=True))
    graph = graph_of(model, torch.ones(3, tokens, width))
    assert graph.forward_flops == 4 * 2 * tokens * width * width + 2 * 2 * tokens * tokens * width


@pytest.mark.parametrize(
    ("module", "example", "uncounted"),
    [
        (nn.GRU(3, 4, batch_first=True), torch.ones(2, 5, 3), ()),
        (Calling(lambda self, x: torch.fft.fft(x)), torch.ones(2, 8), ("_fft_r2c",)),
        (Calling(lambda self, x: torch.linalg.inv(x)), torch.eye(3).repeat(2, 1, 1), ("linalg_inv_ex",)),
        (Calling(lambda self, x: x @ self.v, v=nn.Parameter(torch.ones(3))), torch.ones(2, 3), ()),
        (Calling(lambda self, x: torch.cdist(x, x)), torch.ones(2, 8, 3), ()),
        (nn.LSTM(3, 4, batch_first=True), torch.ones(2, 5, 3), ()),
        (nn.Embedding(9, 4), torch.zeros(2, dtype=torch.int64), ()),
        (Calling(lambda self, x: x / x.norm()), torch.ones(2, 3), ()),
        (nn.Conv2d(1, 1, 1), torch.ones(2, 1, 1, 1), ()),
    ],
    ids=["gru", "fft", "inv", "mv", "cdist", "lstm", "embedding", "norm", "conv"],
)
def test_compute_that_has_no_formula_is_listed_and_nothing_else(
    module: nn.Module, example: torch.Tensor, uncounted: tuple[str, ...]
) -> None:
    ops = graph_of(nn.Sequential(module), example).ops
    assert tuple(name for op in ops for name in op.uncounted) == uncounted


CONV1, CONV2 = 2 * 36 * 4 * 3 * 9, 2 * 36 * 5 * 4 * 9


def convolutions() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 3, padding=1))


def backward_of(model: nn.Module, example: torch.Tensor) -> tuple[int, int]:
    graph = graph_of(model, example)
    assert graph.op["1"].backward_flops == 0
    return graph.op["0"].backward_flops, graph.op["2"].backward_flops


def test_backward_costs_one_product_for_the_weight_and_one_for_an_input_that_needs_it() -> None:
    image = torch.ones(2, 3, 6, 6)
    assert backward_of(convolutions(), image) == (CONV1, 2 * CONV2)
    assert backward_of(convolutions(), image.clone().requires_grad_()) == (2 * CONV1, 2 * CONV2)


def test_frozen_layers_have_no_weight_gradient_and_nothing_upstream_no_input_gradient() -> None:
    image, frozen_front, frozen_end = torch.ones(2, 3, 6, 6), convolutions(), convolutions()
    frozen_front[0].requires_grad_(False)
    frozen_end[2].requires_grad_(False)
    assert backward_of(frozen_front, image) == (0, CONV2)
    assert backward_of(frozen_end, image) == (CONV1, CONV2)
    assert backward_of(convolutions().requires_grad_(False), image) == (0, 0)


def test_backward_of_linear_layers_and_of_a_product_of_two_activations() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 7))
    assert backward_of(model, torch.ones(2, 3)) == (2 * 3 * 5, 2 * (2 * 5 * 7))
    both = Calling(lambda self, x: self.a(x) @ self.b(x).mT, a=nn.Linear(3, 4), b=nn.Linear(3, 4))
    op = graph_of(both, torch.ones(2, 6, 3)).op["matmul"]
    assert (op.forward_flops, op.backward_flops) == (2 * 6 * 6 * 4, 2 * (2 * 6 * 6 * 4))


def test_requires_grad_starts_where_the_first_trainable_parameter_is() -> None:
    model = convolutions()
    model[0].requires_grad_(False)
    graph = graph_of(model, torch.ones(2, 3, 6, 6))
    assert {name: value.requires_grad for name, value in graph.value.items()} == {
        "input": False,
        "0": False,
        "1": False,
        "2": True,
    }
    assert [parameter.name for parameter in graph.parameters if not parameter.trainable] == ["0.weight", "0.bias"]


@pytest.mark.parametrize(
    ("dtype", "size"),
    [(torch.float64, 8), (torch.float32, 4), (torch.bfloat16, 2), (torch.float16, 2), (torch.complex64, 8)],
)
def test_bytes_follow_the_element_size(dtype: torch.dtype, size: int) -> None:
    graph = graph_of(nn.Sequential(nn.Linear(3, 5, dtype=dtype)), torch.ones(2, 3, dtype=dtype))
    (op,) = graph.ops
    assert graph.parameter_bytes == size * (15 + 5)
    assert graph.inputs[0].bytes_per_sample == size * 3
    assert op.output is not None
    assert (op.output.bytes_per_sample, op.output.constant_bytes) == (size * 5, 0)
    assert op.output.dtype == str(dtype).removeprefix("torch.")
    assert (op.memory_bytes_per_sample, op.constant_memory_bytes) == (size * (3 + 5), size * (15 + 5))


def test_integer_and_bool_activations_have_their_own_sizes() -> None:
    graph = graph_of(Calling(lambda self, x: (x > 0, x.argmax(1), x.int())), torch.ones(2, 3))
    assert [(op.output.dtype, op.output.bytes_per_sample) for op in graph.ops if op.output] == [
        ("bool", 3),
        ("int64", 8),
        ("int32", 12),
    ]


@pytest.mark.parametrize(
    ("function", "read_and_written"),
    [
        (lambda self, x: x.relu(), 8192),
        (lambda self, x: (x + 0).relu_(), 8192),
        (lambda self, x: x.view(-1, 4, 256), 0),
        (lambda self, x: x.transpose(0, 1), 0),
        (lambda self, x: x.flatten(1), 0),
        (lambda self, x: x[:, :512], 0),
        (lambda self, x: x.expand(-1, -1), 0),
        (lambda self, x: x.to(torch.float32), 0),
        (lambda self, x: x.to(torch.float64), 4096 + 8192),
        (lambda self, x: x.t().reshape(-1), 8192),
        (lambda self, x: torch.cat([x, x], 1), 8192 + 8192),
    ],
)
def test_memory_traffic_is_what_is_read_and_written_and_nothing_for_a_view(
    function: Callable[..., Any], read_and_written: int
) -> None:
    last = graph_of(Calling(function), KIB4).ops[-1]
    assert (last.memory_bytes_per_sample, last.constant_memory_bytes) == (read_and_written, 0)


def kinds(function: Callable[..., Any], *inputs: torch.Tensor, **held: Any) -> dict[str, tuple[str, int | None]]:
    axes = held.pop("batch_axes", None)
    graph = graph_of(Calling(function, **held), *inputs, batch_axes=axes)
    return {op.name: (op.output.kind, op.output.batch_axis) for op in graph.ops if op.output is not None}


SEQUENCE = torch.ones(2, 5, 3)


def test_the_batch_axis_is_followed_to_wherever_it_moves() -> None:
    found = kinds(lambda self, x: x.transpose(0, 1).permute(2, 1, 0).unsqueeze(0), SEQUENCE)
    assert found == {"transpose": ("batched", 1), "permute": ("batched", 1), "unsqueeze": ("batched", 2)}


def test_a_batch_axis_that_is_not_the_first_may_be_given() -> None:
    found = kinds(lambda self, x: self.rnn(x)[0].mean(0), SEQUENCE, rnn=nn.LSTM(3, 4), batch_axes={"inputs_0": 1})
    assert found == {"getitem": ("batched", 1), "mean": ("batched", 0)}


def test_a_batch_merged_with_another_axis_is_no_batch_axis() -> None:
    found = kinds(lambda self, x: x.flatten(0, 1).view(-1, 5, 3), SEQUENCE)
    assert found == {"flatten": ("per-rank", None), "view": ("batched", 0)}


def test_what_no_longer_grows_with_the_batch_but_depends_on_it_is_per_rank() -> None:
    assert kinds(lambda self, x: x.mean(0), SEQUENCE) == {"mean": ("per-rank", None)}
    assert kinds(lambda self, x: x @ x.mT, torch.ones(2, 3)) == {
        "getattr_1": ("batched", 1),
        "matmul": ("per-rank", None),
    }


def test_what_parameters_and_constants_alone_yield_is_replicated() -> None:
    found = kinds(
        lambda self, x: x + self.table(self.ids).relu() + torch.arange(3),
        SEQUENCE,
        table=nn.Embedding(5, 3),
        ids=torch.arange(5),
    )
    assert found == {
        "table": ("replicated", None),
        "relu": ("replicated", None),
        "add": ("batched", 0),
        "add_1": ("batched", 0),
    }


def test_a_tensor_sized_by_an_input_without_reading_it_is_replicated() -> None:
    found = kinds(lambda self, x: self.ids[: x.size(1)] * 2, SEQUENCE, ids=torch.arange(9))
    assert found["mul"] == ("replicated", None)


def test_random_numbers_are_per_rank_or_batched_never_replicated() -> None:
    assert kinds(lambda self, x: F.dropout(self.gain), SEQUENCE, gain=nn.Parameter(torch.ones(3))) == {
        "dropout": ("per-rank", None)
    }
    assert kinds(lambda self, x: torch.rand_like(x), SEQUENCE) == {"rand_like": ("batched", 0)}


def test_values_that_do_not_grow_cost_constant_bytes_and_flops() -> None:
    model = Calling(
        lambda self, x: x @ (self.a @ self.b), a=nn.Parameter(torch.ones(3, 4)), b=nn.Parameter(torch.ones(4, 5))
    )
    graph = graph_of(model, torch.ones(2, 3))
    assert (graph.op["matmul"].forward_flops, graph.op["matmul"].constant_flops) == (0, 2 * 3 * 4 * 5)
    assert (graph.op["matmul_1"].forward_flops, graph.op["matmul_1"].constant_flops) == (2 * 3 * 5, 0)
    product = graph.value["matmul"]
    assert (product.bytes_per_sample, product.constant_bytes, product.shape) == (0, 60, (3, 5))


def test_the_cost_is_the_slope_where_an_input_grows_without_being_the_batch() -> None:
    graph = graph_of(Calling(lambda self, x, w: x @ w), torch.ones(2, 3), torch.ones(3, 4))
    assert [value.kind for value in graph.inputs] == ["batched", "per-rank"]
    assert graph.op["matmul"].forward_flops == 2 * 3 * 4


@pytest.mark.parametrize("batch", [1, 3])
def test_shapes_are_those_at_the_examples_batch(batch: int) -> None:
    graph = graph_of(Calling(lambda self, x: x.repeat(2, 1).view(-1, 4)), torch.ones(batch, 6))
    assert graph.batch_size == batch
    assert [value.shape for value in graph.value.values()] == [(batch, 6), (2 * batch, 6), (3 * batch, 4)]
    assert [value.batch_axis for value in graph.value.values()] == [0, None, None]
    assert [value.bytes_at(batch) for value in graph.value.values()] == [24 * batch, 48 * batch, 48 * batch]


def test_arithmetic_on_sizes_is_free_and_marked() -> None:
    graph = graph_of(Calling(lambda self, x: x.view(x.size(0), x.shape[1] // 2, 2)), torch.ones(2, 8))
    assert {op.name: op.is_size for op in graph.ops} == {
        "size": True,
        "getattr_1": True,
        "getitem": True,
        "floordiv": True,
        "view": False,
    }
    assert str(graph.value["view"]) == "view f32[B, 4, 2]"


def test_ops_that_draw_random_numbers_are_marked() -> None:
    model = Calling(
        lambda self, x: torch.rand_like(self.drop(x)).relu() + F.dropout(x, 0.5) + self.off(x),
        drop=nn.Dropout(0.5),
        off=nn.ReLU(),
    )
    assert [op.name for op in graph_of(model, KIB4).ops if op.is_random] == ["drop", "rand_like", "dropout"]


def test_ops_name_the_parameters_and_buffers_that_they_read() -> None:
    model = Calling(
        lambda self, x: self.norm(self.fc(x)) * self.gain + self.shift,
        fc=nn.Linear(3, 3),
        norm=nn.BatchNorm1d(3),
        gain=nn.Parameter(torch.ones(3)),
        shift=torch.ones(3),
    )
    graph = graph_of(model, torch.ones(2, 3))
    assert {op.name: op.parameters for op in graph.ops} == {
        "fc": ("fc.weight", "fc.bias"),
        "norm": ("norm.weight", "norm.bias"),
        "mul": ("gain",),
        "add": (),
    }
    assert graph.op["norm"].buffers == ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked")
    assert graph.op["add"].buffers == ("shift",)


def test_a_tied_parameter_is_one_with_further_names() -> None:
    model = Calling(
        lambda self, x: self.head(self.table(x)), table=nn.Embedding(9, 4), head=nn.Linear(4, 9, bias=False)
    )
    model.head.weight = model.table.weight
    graph = graph_of(model, torch.zeros(2, 3, dtype=torch.int64))
    (parameter,) = graph.parameters
    assert (parameter.name, parameter.aliases, parameter.bytes) == ("table.weight", ("head.weight",), 4 * 36)
    assert [op.parameters for op in graph.ops] == [("table.weight",), ("table.weight",)]


def test_lookups_for_a_sparse_gradient_are_told_by_sample() -> None:
    ids = torch.zeros(4, 6, dtype=torch.long)
    for module in (nn.EmbeddingBag(1000, 16, mode="sum", sparse=True), nn.Embedding(1000, 16, sparse=True)):
        (op,) = profiled(module, ids).graph.ops
        assert op.sparse_lookups == 6
        written = 16 * 4 * (6 if isinstance(module, nn.Embedding) else 1)
        assert op.memory_bytes_per_sample >= 6 * 8 + 6 * 16 * 4 + written
        assert op.constant_memory_bytes == 0  # of the table only the rows are read
    (op,) = profiled(nn.Embedding(1000, 16), ids).graph.ops
    assert (op.sparse_lookups, op.constant_memory_bytes) == (0, 1000 * 16 * 4)


def test_a_functional_lookup_may_be_sparse_too() -> None:
    def look_up(model: Any, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, model.table, sparse=True)

    graph = profiled(Calling(look_up, table=nn.Parameter(torch.ones(50, 2))), torch.zeros(4, 3, dtype=torch.long)).graph
    assert [op.sparse_lookups for op in graph.ops if op.parameters] == [3]


def test_ragged_lookups_are_the_examples_share_a_sample() -> None:
    bags = nn.EmbeddingBag(1000, 16, mode="sum", sparse=True)
    ids, offsets = torch.zeros(9, dtype=torch.long), torch.tensor([0, 2, 2, 6])
    (op,) = profiled(bags, ids, offsets, batch_axes={"input": None, "offsets": 0}).graph.ops
    assert op.sparse_lookups == 9 / 4


def test_writes_are_told_by_storage() -> None:
    model = Calling(
        lambda self, x: (self.fc(x).view(-1, 3, 1).relu_(), self.seen.add_(1)), fc=nn.Linear(3, 3), seen=torch.zeros(3)
    )
    found = profiled(model, torch.ones(2, 3))
    assert found.storages["fc"] == found.storages["view"] == found.storages["relu_"]
    assert found.mutations["relu_"] == (found.storages["fc"],)
    (seen,) = found.mutations["add_"]
    assert found.state_storages[seen] == "seen"
    assert set(found.mutations) == {"relu_", "add_"}


def test_a_batch_norms_statistics_are_writes() -> None:
    found = profiled(nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(), nn.ReLU()), torch.ones(2, 3))
    assert {found.state_storages[key] for key in found.mutations["0"]} == {
        "0.running_mean",
        "0.running_var",
        "0.num_batches_tracked",
    }
    assert set(found.mutations) == {"0"}


def test_a_functional_batch_norm_writes_its_statistics_too() -> None:
    model = Calling(
        lambda self, x: F.batch_norm(x, self.mean, self.var, training=True), mean=torch.zeros(3), var=torch.ones(3)
    )
    found = profiled(model, torch.ones(2, 3))
    assert {found.state_storages[key] for key in found.mutations["batch_norm"]} == {"mean", "var"}


def test_targets_weigh_what_one_of_them_occupies() -> None:
    options = {"targets": {"label": torch.zeros(4, dtype=torch.int64), "box": torch.zeros(4, 4)}}
    loss = options | {"loss_fn": lambda outputs, targets: outputs.mean()}
    assert graph_of(nn.Sequential(nn.ReLU()), torch.ones(4, 3), **loss).target_bytes == 8 + 16
    assert graph_of(nn.Sequential(nn.ReLU()), torch.ones(4, 3), **options).target_bytes == 0


def test_profiling_touches_neither_the_model_nor_the_random_numbers() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout())
    model[0].weight.grad = torch.full((3, 3), 7.0)
    before = copy.deepcopy(model.state_dict())
    state = torch.random.get_rng_state()
    graph_of(model, torch.ones(2, 3))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model[0].weight.grad.tolist() == [[7.0] * 3] * 3
    assert model[0].bias.grad is None


def test_an_op_that_takes_one_batch_size_alone_is_told_with_its_name_and_line_and_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ProfileError, match=r"^test_profile.py:\d+: add can't be profiled at batch 6: RuntimeError: "):
        graph_of(Calling(lambda self, x: x + self.table, table=torch.ones(3, 8)), torch.ones(3, 8))
    assert caplog.records == []


def test_an_op_whose_size_depends_on_values_is_told_with_what_helps() -> None:
    with pytest.raises(
        ProfileError, match=r"^test_profile.py:\d+: how large .* is depends on .*; .* --leaf SUBMODULE$"
    ):
        graph_of(Calling(lambda self, x: x[x > 0].sum()), torch.ones(3, 8))


def test_a_long_chain_is_profiled_op_by_op() -> None:
    graph = graph_of(
        nn.Sequential(*(nn.ReLU() if index % 2 else nn.Linear(4, 4) for index in range(300))), torch.ones(2, 4)
    )
    assert len(graph.ops) == 300
    assert graph.forward_flops == 150 * 2 * 4 * 4


def test_layers_like_earlier_ones_have_their_figures_and_their_own_names() -> None:
    """By hand: three equal blocks, a wider one, and the first block again at the end."""

    def block(width: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.1), nn.Linear(width, 4))

    model = nn.Sequential(block(8), block(8), block(8), block(16))
    again = Calling(lambda self, x: self.blocks[0](self.blocks(x)), blocks=model)
    found = profiled(again, torch.ones(2, 4))
    figures = {op.name: (op.forward_flops, op.backward_flops, op.is_random) for op in found.graph.ops}
    first, second = "blocks.{}.0", "blocks.{}.3"
    assert [figures[first.format(place)] for place in range(4)] == [
        (64, 64, False),  # the model's input needs no gradient
        (64, 128, False),
        (64, 128, False),
        (128, 256, False),
    ]
    assert figures["blocks.0.0#2"] == (64, 128, False)
    assert [figures[second.format(place)][0] for place in range(4)] == [64, 64, 64, 128]
    assert figures["blocks.2.2"] == (0, 0, True)
    for place in range(4):
        assert {found.state_storages[key] for key in found.mutations[f"blocks.{place}.1"]} == {
            f"blocks.{place}.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
        }
    assert len(set(found.storages.values())) == len(found.storages)


def test_a_write_after_a_call_like_an_earlier_one_is_a_write_to_that_calls_result() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        one, other = self.a(x), self.b(x)
        return one.relu_() + other.relu_()

    found = profiled(Calling(forward, a=nn.Linear(3, 3), b=nn.Linear(3, 3)), torch.ones(2, 3))
    assert found.mutations == {"relu_": (found.storages["a"],), "relu__1": (found.storages["b"],)}
    assert found.storages["a"] != found.storages["b"]
