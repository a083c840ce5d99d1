"""What is noted of the aten calls that run."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from stanza_compiler.aten_calls import AtenCalls, tensors_in

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
        (lambda: MATRIX @ VECTOR, ["mv"]),
        (lambda: VECTOR @ VECTOR, ["dot"]),
        (lambda: torch.vdot(VECTOR, VECTOR), ["vdot"]),
        (lambda: torch.addmv(VECTOR, MATRIX, VECTOR), ["addmv"]),
        (lambda: torch.eye(4).addmm_(MATRIX, MATRIX), ["addmm_"]),
        (lambda: torch.addbmm(MATRIX, MATRIX[None], MATRIX[None]), ["addbmm"]),
        (lambda: torch.linalg.cholesky(MATRIX), ["linalg_cholesky_ex"]),
        (lambda: torch.fft.fft(VECTOR), ["_fft_r2c"]),
        (lambda: MATRIX @ MATRIX, []),
        (lambda: MATRIX.norm() + MATRIX.softmax(0).sum(), []),
    ],
)
def test_what_multiplies_without_a_formula_is_named(function: Callable[[], object], names: list[str]) -> None:
    assert noted(function).uncounted == names


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
