"""FLOPs of single calls, forward and backward, against figures by hand; called as torch's and as aten's functions."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, fx, nn

from stanza_compiler.aten_calls import AtenCalls, plain_attention, tensors_in
from stanza_compiler.flop_formulas import formula_of

aten = torch.ops.aten
B, M, K, N = 2, 4, 3, 5
HEADS, TOKENS, KEYS, WIDTH, VALUES = 4, 5, 7, 6, 3
QUERY, KEY, VALUE = (B, HEADS, TOKENS, WIDTH), (B, HEADS, KEYS, WIDTH), (B, HEADS, KEYS, VALUES)
ATTENTION = 2 * B * HEADS * TOKENS * KEYS * (WIDTH + VALUES)  # the scores, and the values' sums
Sizes = tuple[int, ...]


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: Tensor) -> Any:
        return self.function(*operands)


def torchs(function: Callable[..., Any], operands: list[Tensor]) -> Callable[..., Any]:
    return function


def atens(function: Callable[..., Any], operands: list[Tensor]) -> Callable[..., Any]:
    """The same as torch.export writes it: calls of aten's functions alone."""
    examples = tuple(operand.detach() for operand in operands)
    return fx.Interpreter(torch.export.export(Function(function), examples, strict=False).module()).run


def counted(
    level: Callable[..., Any], function: Callable[..., Any], *sizes: Sizes, needed: tuple[int, ...] | None = None
) -> tuple[int, int]:
    """FLOPs forward and backward; a gradient is needed of all operands or of those at `needed`."""
    operands = [torch.rand(size) for size in sizes]
    wanted = operands if needed is None else [operands[index] for index in needed]
    for operand in wanted:
        operand.requires_grad_()
    called, calls = level(function, operands), AtenCalls()
    with calls:
        outputs = [output for output in tensors_in(called(*operands)) if output.requires_grad]
        forward = calls.flops
        torch.autograd.grad(outputs, wanted, [torch.ones_like(output) for output in outputs], allow_unused=True)
    assert calls.uncounted == []
    return forward, calls.flops - forward


# Of switching oneDNN off and on, and of a layer that it does not run.
pytestmark = [
    pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]
both_levels = pytest.mark.parametrize("level", [torchs, atens])


@both_levels
@pytest.mark.parametrize(
    ("function", "sizes", "products"),
    [
        (torch.mm, [(M, K), (K, N)], M * K * N),
        (torch.bmm, [(B, M, K), (B, K, N)], B * M * K * N),
        (torch.matmul, [(B, M, K), (K, N)], B * M * K * N),
        (torch.matmul, [(B, 1, M, K), (N, K, N)], B * N * M * K * N),
        (torch.addmm, [(N,), (M, K), (K, N)], M * K * N),
        (torch.baddbmm, [(N,), (B, M, K), (B, K, N)], B * M * K * N),
        (torch.addbmm, [(M, N), (B, M, K), (B, K, N)], B * M * K * N),
        (F.linear, [(B, M, K), (N, K), (N,)], B * M * K * N),
        (F.linear, [(K,), (N, K), (N,)], K * N),
        (torch.inner, [(M, K), (N, K)], M * K * N),
        (lambda a, b: torch.tensordot(a, b, 2), [(M, K, B), (K, B, N)], M * K * B * N),
        (lambda a: torch.linalg.matrix_power(a, 5), [(M, M)], 3 * M**3),  # two squares, and times the matrix
        (lambda *all_of: torch.linalg.multi_dot(all_of), [(4, 5), (5, 6), (6, 3)], 5 * 6 * 3 + 4 * 5 * 3),
        (lambda *all_of: torch.chain_matmul(*all_of), [(4, 5), (5, 6), (6, 3)], 5 * 6 * 3 + 4 * 5 * 3),
        (lambda a, b: torch.einsum("bij,bjk->bik", a, b), [(B, M, K), (B, K, N)], B * M * K * N),
        (lambda a, b: torch.einsum("bi,bi->b", a, b), [(B, K), (B, K)], B * K),
        (lambda a, w: torch.einsum("bthd,hde->bte", a, w), [(B, M, K, N), (K, N, 6)], B * M * K * N * 6),
        (torch.cdist, [(B, M, K), (B, N, K)], B * M * N * K),
        (torch.cdist, [(B, 30, K), (B, 26, K)], B * 30 * 26 * K),
        (lambda a, b: torch.cdist(a, b, p=1.0), [(M, K), (N, K)], M * N * K),
        (F.pdist, [(M, K)], M * (M - 1) // 2 * K),
    ],
)
@pytest.mark.filterwarnings("ignore:.*chain_matmul is deprecated")
def test_a_products_backward_is_one_more_for_each_of_its_two_factors(
    level: Callable[..., Any], function: Callable[..., Any], sizes: list[Sizes], products: int
) -> None:
    assert counted(level, function, *sizes) == (2 * products, 4 * products)


@both_levels
@pytest.mark.parametrize(
    ("function", "sizes", "forward", "backward"),
    [
        (torch.mv, [(M, K), (K,)], 2 * M * K, 2 * M * K),
        (torch.matmul, [(B, M, K), (K,)], 2 * B * M * K, 2 * B * M * K),
        (torch.addmv, [(M,), (M, K), (K,)], 2 * M * K, 2 * M * K),
        (torch.dot, [(K,), (K,)], 2 * K, 0),
        (torch.vdot, [(K,), (K,)], 2 * K, 0),
        (torch.outer, [(M,), (N,)], 0, 0),
        (torch.ger, [(M,), (N,)], 0, 0),
        (lambda a, b: torch.einsum("bi,bj->bij", a, b), [(B, M), (B, N)], 0, 0),
    ],
)
def test_an_outer_product_and_a_scaled_vector_have_no_multiply_adds(
    level: Callable[..., Any], function: Callable[..., Any], sizes: list[Sizes], forward: int, backward: int
) -> None:
    assert counted(level, function, *sizes) == (forward, backward)


@both_levels
def test_only_gradients_that_are_needed_are_counted(level: Callable[..., Any]) -> None:
    linear, convolution = [(B, K), (N, K), (N,)], [(B, 4, 9, 9), (6, 4, 3, 3)]
    one = 2 * B * 7 * 7 * 6 * 4 * 9
    for needed, gradients in [((1, 2), 1), ((0,), 1), ((2,), 0), ((0, 1, 2), 2)]:
        assert counted(level, F.linear, *linear, needed=needed) == (2 * B * K * N, gradients * 2 * B * K * N)
    for needed, gradients in [((1,), 1), ((0,), 1), ((0, 1), 2)]:
        assert counted(level, F.conv2d, *convolution, needed=needed) == (one, gradients * one)


@both_levels
@pytest.mark.parametrize(
    ("function", "image", "weight", "products"),
    [
        (F.conv1d, (B, 4, 10), (8, 4, 3), B * 8 * 8 * 4 * 3),
        (lambda x, w: F.conv2d(x, w, padding="same"), (B, 4, 6, 6), (8, 4, 3, 3), B * 36 * 8 * 4 * 9),
        (lambda x, w: F.conv2d(x, w, stride=2, dilation=2), (B, 4, 9, 9), (8, 4, 3, 3), B * 9 * 8 * 4 * 9),
        (lambda x, w: F.conv2d(x, w, groups=2), (B, 4, 6, 6), (8, 2, 3, 3), B * 16 * 8 * 2 * 9),
        (lambda x, w: F.conv2d(x, w, groups=4), (B, 4, 6, 6), (4, 1, 3, 3), B * 16 * 4 * 9),
        (F.conv3d, (B, 2, 3, 4, 5), (4, 2, 1, 2, 3), B * 27 * 4 * 2 * 6),
        # transposed: at every position of the input
        (lambda x, w: F.conv_transpose2d(x, w, stride=2), (B, 4, 5, 5), (4, 6, 3, 3), B * 25 * 4 * 6 * 9),
        (lambda x, w: F.conv_transpose2d(x, w, groups=2, dilation=2), (B, 4, 5, 5), (4, 3, 3, 3), B * 25 * 4 * 3 * 9),
        (F.conv_transpose1d, (B, 4, 5), (4, 6, 3), B * 5 * 4 * 6 * 3),
    ],
)
def test_convolutions_use_every_weight_at_every_position(
    level: Callable[..., Any], function: Callable[..., Any], image: Sizes, weight: Sizes, products: int
) -> None:
    assert counted(level, function, image, weight) == (2 * products, 4 * products)


def test_convolutions_of_time_first_and_of_moved_points() -> None:
    products = 7 * B * 4 * 6 * 3
    time_first, _ = counted(torchs, lambda x, w, b: torch.conv_tbc(x, w, b, 1), (7, B, 4), (3, 4, 6), (6,))
    assert time_first == 2 * products
    products = B * 9 * 6 * 4 * 9
    moved = counted(torchs, torchvision.ops.deform_conv2d, (B, 4, 5, 5), (B, 18, 3, 3), (6, 4, 3, 3))
    assert moved == (2 * products, 4 * products)


def attended(**options: Any) -> Callable[..., Tensor]:
    return lambda query, key, value: F.scaled_dot_product_attention(query, key, value, **options)


@contextlib.contextmanager
def fused_attention() -> Iterator[None]:
    yield


@both_levels
@pytest.mark.parametrize("kernels", [plain_attention, fused_attention])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"attn_mask": torch.ones(TOKENS, KEYS, dtype=torch.bool)},
        {"attn_mask": torch.ones(TOKENS, KEYS)},
        {"dropout_p": 0.5},
        {"scale": 2.0},
    ],
)
def test_attention_is_two_products_dense_by_any_kernel_and_twice_that_backward(
    level: Callable[..., Any], kernels: Callable[[], Any], options: dict[str, Any]
) -> None:
    with kernels():
        for value, width in (VALUE, VALUES), (KEY, WIDTH):  # kernels of their own take values as wide as keys alone
            attention = 2 * B * HEADS * TOKENS * KEYS * (WIDTH + width)
            assert counted(level, attended(**options), QUERY, KEY, value) == (attention, 2 * attention)


@both_levels
@pytest.mark.parametrize("kernels", [plain_attention, fused_attention])
def test_attention_without_heads_and_with_heads_that_queries_share(
    level: Callable[..., Any], kernels: Callable[[], Any]
) -> None:
    shared = (B, 2, KEYS, WIDTH)
    attention = 4 * B * HEADS * TOKENS * KEYS * WIDTH
    with kernels():
        assert counted(level, attended(enable_gqa=True), QUERY, shared, shared) == (attention, 2 * attention)
        flat = counted(level, attended(), (B, TOKENS, WIDTH), (B, KEYS, WIDTH), (B, KEYS, WIDTH))
        assert flat == (attention // HEADS, 2 * attention // HEADS)


@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn", "fused"])
def test_the_scores_that_a_fused_kernel_computes_once_more_are_not_counted(kernel: str) -> None:
    name = (
        "_scaled_dot_product_fused_attention_overrideable"
        if kernel == "fused"
        else f"_scaled_dot_product_{kernel}_attention"
    )
    operands = torch.empty(QUERY), torch.empty(KEY), torch.empty(VALUE)
    output = torch.empty(*QUERY[:-1], VALUES)
    forward, backward = formula_of(getattr(aten, name).default), formula_of(getattr(aten, f"{name}_backward").default)
    assert forward is not None
    assert backward is not None
    assert forward(*operands, out_val=(output,)) == ATTENTION
    assert backward(output, *operands, out_val=operands) == 2 * ATTENTION


def test_fused_inference_layers_are_projections_attention_and_feed_forward() -> None:
    width, inner = 8, 16
    layer = nn.TransformerEncoderLayer(width, 2, inner, batch_first=True).eval().requires_grad_(False)
    rows = B * TOKENS
    attention = 2 * rows * 4 * width * width + 2 * 2 * B * TOKENS * TOKENS * width
    x = torch.rand(B, TOKENS, width)

    def flops_of(function: Callable[[], object]) -> int:
        calls = AtenCalls()
        with calls:
            function()
        assert calls.uncounted == []
        return calls.flops

    for kernels in fused_attention, plain_attention:
        with kernels():
            assert flops_of(lambda: layer(x)) == attention + 2 * rows * 2 * width * inner
            assert flops_of(lambda: layer.self_attn(x, x, x)) == attention


@both_levels
def test_a_bilinear_layer_multiplies_one_input_then_the_other(level: Callable[..., Any]) -> None:
    one, two, out = 3, 4, 5
    forward, backward = counted(level, F.bilinear, (B, one), (B, two), (out, one, two), (out,))
    assert forward == 2 * B * out * two * (one + 1)
    of_one = 2 * B * one * two * (out + 1)  # the weight by the output's gradient, then by the other input
    of_two = 2 * B * out * two * (one + 1)
    of_weight = 2 * B * out * one * two  # the sum over the batch
    assert backward == of_one + of_two + of_weight


def by_hand(
    gates: int, steps: int, inputs: int, hidden: int, layers: int = 1, directions: int = 1, projected: int = 0
) -> tuple[int, int]:
    """FLOPs per sample of a recurrent network whose input and first state need no gradient."""
    state, forward, backward = projected or hidden, 0, 0
    for layer in range(layers):
        width = directions * state if layer else inputs
        of_input = directions * steps * 2 * gates * hidden * width
        of_state = directions * 2 * gates * hidden * state
        of_projection = directions * steps * 2 * projected * hidden
        forward += of_input + steps * of_state + of_projection
        backward += of_input + steps * of_state + of_projection  # of the weights
        backward += bool(layer) * of_input + (steps - 1) * of_state + of_projection
    return forward, backward


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize(
    ("kind", "gates", "options"),
    [
        (nn.LSTM, 4, {}),
        (nn.LSTM, 4, {"num_layers": 2, "bidirectional": True, "bias": False}),
        (nn.LSTM, 4, {"num_layers": 2, "bidirectional": True, "proj_size": 2}),
        (nn.GRU, 3, {"num_layers": 2, "bidirectional": True}),
        (nn.RNN, 1, {"num_layers": 3}),
    ],
)
def test_recurrent_layers_cost_the_same_whatever_kernel_runs_them(
    onednn: bool, kind: type[nn.RNNBase], gates: int, options: dict[str, Any]
) -> None:
    steps, inputs, hidden = 6, 3, 4
    layer, calls = kind(inputs, hidden, **options), AtenCalls()
    with torch.backends.mkldnn.flags(enabled=onednn), calls:
        outputs, _ = layer(torch.rand(steps, B, inputs))
        forward = calls.flops
        torch.autograd.grad(outputs.sum(), tuple(layer.parameters()))
    assert calls.uncounted == []
    hand = by_hand(
        gates,
        steps,
        inputs,
        hidden,
        options.get("num_layers", 1),
        1 + options.get("bidirectional", False),
        options.get("proj_size", 0),
    )
    assert (forward, calls.flops - forward) == (B * hand[0], B * hand[1])


@pytest.mark.parametrize("onednn", [True, False])
def test_a_recurrent_layers_input_and_first_state_cost_more_where_they_need_a_gradient_and_frozen_weights_less(
    onednn: bool,
) -> None:
    steps, inputs, hidden = 6, 3, 4
    of_input, of_state = 2 * B * steps * 4 * hidden * inputs, 2 * B * 4 * hidden * hidden
    x, h, c = torch.rand(steps, B, inputs), torch.rand(1, B, hidden), torch.rand(1, B, hidden)
    for operand in x, h, c:
        operand.requires_grad_()
    for trainable in True, False:
        layer, calls = nn.LSTM(inputs, hidden).requires_grad_(trainable), AtenCalls()
        with torch.backends.mkldnn.flags(enabled=onednn):
            outputs, _ = layer(x, (h, c))
            with calls:
                torch.autograd.grad(outputs.sum(), [x, h, c, *(layer.parameters() if trainable else ())])
        assert calls.flops == (1 + trainable) * (of_input + steps * of_state)


def test_cudnns_recurrent_layers_cost_what_others_do() -> None:
    steps, inputs, hidden, layers, directions = 6, 3, 4, 2, 2
    weights = [
        torch.empty(size, requires_grad=True)
        for layer in range(layers)
        for _ in range(directions)
        for size in [(16, directions * hidden if layer else inputs), (16, hidden), (16,), (16,)]
    ]
    x, h, c = torch.empty(steps, B, inputs), torch.empty(4, B, hidden), torch.empty(4, B, hidden)
    setting = (2, hidden, 0, layers, False, 0.0, True, True, [], None)
    forward, backward = (formula_of(getattr(aten, name).default) for name in ("_cudnn_rnn", "_cudnn_rnn_backward"))
    assert forward is not None
    assert backward is not None
    hand = by_hand(4, steps, inputs, hidden, layers, directions)
    assert forward(x, weights, 4, None, h, c, *setting, out_val=x) == B * hand[0]
    gradients = (x, x, None, None)
    assert backward(x, weights, 4, None, h, c, *gradients, *setting, x, [False] * 4, out_val=x) == B * hand[1]


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTMCell, 4), (nn.GRUCell, 3), (nn.RNNCell, 1)])
def test_a_recurrent_cell_is_one_step(kind: type[nn.RNNCellBase], gates: int) -> None:
    cell = kind(3, 5)
    state = (torch.rand(B, 5), torch.rand(B, 5)) if kind is nn.LSTMCell else torch.rand(B, 5)
    calls = AtenCalls()
    with calls:
        new = tensors_in(cell(torch.rand(B, 3), state))
        forward = calls.flops
        torch.autograd.grad(new[0].sum(), tuple(cell.parameters()))
    assert forward == 2 * B * gates * 5 * (3 + 5)
    assert calls.flops - forward == forward  # of the weights alone
    assert calls.uncounted == []


@pytest.mark.parametrize(
    ("left", "right", "products"),
    [
        ((16, 16), (2, 16, 32), 16 * 16 * 32),  # groups of rows
        ((2, 16, 16), (2, 16, 32), 2 * 16 * 16 * 32),
        ((2, 16, 16), (16, 32), 16 * 16 * 32),  # groups of columns
        ((16, 16), (16, 32), 16 * 16 * 32),  # groups of the inner length
    ],
)
def test_grouped_products_meet_their_own_group_alone(left: Sizes, right: Sizes, products: int) -> None:
    formula = formula_of(aten._grouped_mm.default)
    assert formula is not None
    assert formula(torch.empty(left), torch.empty(right), torch.tensor([8, 16])) == 2 * products


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_lookups_and_bag_sums_count_nothing(mode: str) -> None:
    bags = torch.tensor([[1, 2], [3, 3]])
    assert counted(torchs, lambda table: F.embedding(bags, table), (9, 4)) == (0, 0)
    assert counted(torchs, lambda table: F.embedding_bag(bags, table, mode=mode), (9, 4)) == (0, 0)


@both_levels
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(-1),
        lambda x: F.layer_norm(x, x.shape[-1:]),
        lambda x: F.gelu(x) * x + x.cumsum(0),
        lambda x: torch.linalg.cross(x[:, :3], x[:, 1:]) / torch.linalg.matrix_norm(x),
        lambda x: F.interpolate(x[None, None, None], scale_factor=2, mode="trilinear"),
    ],
)
def test_norms_activations_and_interpolation_count_nothing(
    level: Callable[..., Any], function: Callable[..., Any]
) -> None:
    assert counted(level, function, (B, 4)) == (0, 0)
