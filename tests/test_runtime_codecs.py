"""How much of a tensor arrives through each codec."""

import pytest
import torch

from stanza_compiler.runtime.codecs import decode, encode, is_coded, lifting, payload_shape


@pytest.mark.parametrize(("codec", "bits"), [("bf16", 8), ("fp16", 11)])
def test_16_bits_keep_their_share_of_the_mantissa(codec: str, bits: int) -> None:
    tensor = torch.randn(5, 7, 30, generator=torch.Generator().manual_seed(0))
    payload = encode(codec, tensor)
    assert payload.nbytes * 2 == tensor.nbytes
    assert payload.shape == tensor.shape
    error = (decode(codec, payload, torch.float32, tensor.shape) - tensor).abs()
    assert (error <= tensor.abs() * 2.0**-bits + 1e-7).all()
    assert error.max() > 0


def test_int8_keeps_each_row_to_half_a_step_of_its_own_scale() -> None:
    tensor = torch.randn(4, 3, 70, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 3, 4).view(4, 1, 1)
    payload = encode("int8", tensor)
    assert (payload.dtype, payload.shape) == (torch.uint8, (4, 3, 74))
    error = (decode("int8", payload, torch.float32, tensor.shape) - tensor).abs()
    assert (error <= tensor.abs().amax(-1, keepdim=True) / 127 * 0.5001).all()


@pytest.mark.parametrize(
    ("shape", "batch_axis", "payload"),
    [
        ((4, 256, 1, 1), 0, (4, 260)),
        ((4, 8, 13, 13), 0, (4, 8, 173)),
        ((5, 4, 9), 1, (5, 4, 13)),  # rows lie within a sample
        ((4, 6), 0, (4, 10)),
    ],
)
def test_a_row_has_64_numbers_where_a_sample_has(
    shape: tuple[int, ...], batch_axis: int, payload: tuple[int, ...]
) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    coded = encode("int8", tensor, batch_axis)
    assert coded.shape == payload == payload_shape("int8", shape, batch_axis)
    assert torch.allclose(decode("int8", coded, torch.float32, shape), tensor, rtol=0, atol=4 / 127)


def test_rows_of_zeros_and_empty_parts_arrive_as_they_were() -> None:
    for tensor in (torch.zeros(3, 4), torch.zeros(0, 4)):
        assert torch.equal(decode("int8", encode("int8", tensor), torch.float32, tensor.shape), tensor)


def test_a_slice_of_coded_samples_is_the_code_of_the_slice() -> None:
    tensor = torch.randn(6, 2, 9, generator=torch.Generator().manual_seed(2))
    for codec in ("bf16", "fp16", "int8"):
        assert torch.equal(encode(codec, tensor)[2:5], encode(codec, tensor[2:5]))


def test_small_gradients_survive_float16_once_lifted() -> None:
    gradient = torch.full((4, 4), 3e-9)
    assert decode("fp16", encode("fp16", gradient), torch.float32, (4, 4)).abs().max() == 0
    factor = lifting(3_000_000)
    arrived = decode("fp16", encode("fp16", gradient, factor=factor), torch.float32, (4, 4), factor)
    assert torch.allclose(arrived, gradient, rtol=1e-3, atol=0)


def test_what_does_not_fit_into_float16_is_its_largest_number() -> None:
    assert decode("fp16", encode("fp16", torch.tensor([1e9, -1e9])), torch.float32, (2,)).tolist() == [65504, -65504]


def test_the_factor_is_the_next_power_of_two() -> None:
    assert [lifting(samples) for samples in (0, 1, 2, 3, 160, 256)] == [1, 1, 2, 4, 256, 256]


def test_only_wide_floats_are_coded_and_rows_are_those_within_a_sample() -> None:
    assert is_coded("bf16", torch.float32, 1, 0)
    assert not is_coded("fp32", torch.float32, 2, 0)
    assert not is_coded("bf16", torch.bfloat16, 2, 0)
    assert not is_coded("int8", torch.int64, 2, 0)
    assert is_coded("int8", torch.float32, 2, 0)
    assert not is_coded("int8", torch.float32, 1, 0)
    assert not is_coded("int8", torch.float32, 2, 1)
