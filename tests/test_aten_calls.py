"""What is noted of the aten calls that run."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from stanza_compiler.aten_calls import AtenCalls, plain_attention, tensors_in

MATRIX, VECTOR = torch.eye(4), torch.ones(4)


def noted(function: Callable[[], object]) -> AtenCalls:
    calls = AtenCalls()
    with calls:
        function()
    return calls


@pytest.mark.parametrize(
    "function",
    [
        lambda: MATRIX @ MATRIX,
        lambda: F.linear(MATRIX, MATRIX, VECTOR),
        lambda: torch.einsum("ij,kj->ik", MATRIX, MATRIX),
        lambda: torch.cov(MATRIX),
        lambda: F.conv2d(MATRIX[None, None], torch.ones(2, 1, 3, 3)),
        lambda: F.batch_norm(MATRIX, None, None, training=True),
    ],
)
def test_flops_are_those_of_torchs_own_counter(function: Callable[[], object]) -> None:
    counter = FlopCounterMode(display=False)
    with counter:
        function()
    assert noted(function).flops == counter.get_total_flops()


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda: torch.linalg.cholesky(MATRIX), ["linalg_cholesky_ex"]),
        (lambda: torch.linalg.solve(MATRIX, VECTOR), ["_linalg_solve_ex"]),
        (lambda: torch.fft.irfft(torch.fft.fft(VECTOR)), ["_fft_r2c", "_fft_c2r"]),
        (lambda: torch.fft.fftfreq(4), []),
        (lambda: F.interpolate(torch.ones(1, 1, 2, 2, 2), scale_factor=2, mode="trilinear"), []),
        (lambda: torch.linalg.cross(torch.ones(3), torch.ones(3)), []),
        (lambda: nn.LSTMCell(3, 4)(torch.ones(2, 3)), []),
        (lambda: MATRIX @ VECTOR, []),
        (lambda: MATRIX @ MATRIX, []),
        (lambda: MATRIX.norm() + MATRIX.softmax(0).sum(), []),
    ],
)
def test_what_multiplies_without_a_formula_is_named(function: Callable[[], object], names: list[str]) -> None:
    assert noted(function).uncounted == names


def test_an_op_of_another_library_is_a_black_box_with_its_librarys_name() -> None:
    @torch.library.custom_op("aten_calls_test::squared", mutates_args=())
    def squared(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    assert noted(lambda: squared(MATRIX)).uncounted == ["aten_calls_test::squared"]


def test_a_branch_on_data_is_named_not_refused() -> None:
    def branch() -> object:
        return torch.ops.higher_order.cond(torch.tensor(True), lambda x: x @ x, lambda x: x.sin(), (torch.ones(4, 4),))

    with FakeTensorMode(allow_non_fake_inputs=True):
        assert noted(branch).uncounted == ["cond"]


def test_inference_mode_hides_no_multiply_adds() -> None:
    layer, query = nn.GRU(3, 4), torch.ones(2, 5, 4)
    with torch.inference_mode():
        assert noted(lambda: F.linear(MATRIX, MATRIX)).flops == 2 * 4**3
        assert noted(lambda: F.scaled_dot_product_attention(query, query, query)).flops == 2 * 2 * (2 * 5 * 5 * 4)
        assert noted(lambda: layer(torch.ones(5, 2, 3))).flops == 5 * 2 * 2 * 3 * 4 * (3 + 4)


def test_plain_attention_needs_no_nested_tensors_and_leaves_the_settings_as_they_were() -> None:
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    layers.eval().requires_grad_(False)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, plain_attention():
        assert not torch.backends.mha.get_fastpath_enabled()
        fake = copy.deepcopy(layers, {id(tensor): mode.from_tensor(tensor) for tensor in layers.parameters()})
        calls = noted(lambda: fake(torch.ones(2, 5, 8), src_key_padding_mask=padding))
    assert torch.backends.mha.get_fastpath_enabled()
    projections, feed_forward, attention = 4 * 8 * 8, 2 * 8 * 16, 2 * 5 * 8
    assert calls.flops == 2 * 2 * 5 * 2 * (projections + feed_forward + attention)  # layers, samples, tokens


def test_written_tensors_are_noted_whether_returned_or_given_as_out() -> None:
    one, other = torch.zeros(4), torch.zeros(4)
    calls = noted(lambda: (one.add_(1), torch.add(one, 1, out=other), one + other))
    assert [id(tensor) for tensor in calls.mutated] == [id(one), id(other)]


def test_the_statistics_of_a_batch_norm_are_written_though_its_schema_does_not_say_so() -> None:
    mean, variance = torch.zeros(4), torch.ones(4)
    calls = noted(lambda: F.batch_norm(MATRIX, mean, variance, training=True))
    assert [id(tensor) for tensor in calls.mutated] == [id(mean), id(variance)]


def test_random_numbers_are_noted_until_the_next_reset() -> None:
    calls = noted(lambda: torch.rand(3) * 2)
    assert calls.is_random
    calls.reset()
    assert not calls.is_random
    assert not noted(lambda: torch.ones(3) * 2).is_random


def test_tensors_are_found_in_containers_in_order() -> None:
    assert [id(tensor) for tensor in tensors_in({"a": (MATRIX, 3, [VECTOR]), "b": None})] == [id(MATRIX), id(VECTOR)]
