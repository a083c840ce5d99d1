"""How many bytes are left on the wire of what boundary dtype and gradient codec change."""

from dataclasses import dataclass, replace
from math import prod

from stanza_compiler.dataflow import Tensor
from stanza_compiler.opgraph import Value

BOUNDARY_DTYPES = ("fp32", "bf16", "fp16", "int8")
GRADIENT_CODECS = ("none", "bf16", "fp16", "powersgd")

# Bytes of floats that a codec narrows, of a row's scale in int8, and a row's least numbers (runtime/codecs.py).
WIDE = {"float32": 4, "float64": 8}
SCALE_BYTES = 4
ROW = 64


@dataclass(frozen=True, slots=True)
class Codecs:
    """`boundary`: fp32 (as they are), bf16, fp16 or int8 for tensors at the cut; `gradient`: none, bf16 or fp16."""

    boundary: str = "fp32"
    gradient: str = "none"

    @property
    def halves_gradients(self) -> bool:
        return self.gradient != "none"

    def tensors(self, crossing: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The same tensors with the sizes that they have when they cross."""
        if self.boundary == "fp32":
            return crossing
        return tuple(replace(tensor, value=coded(tensor.value, self.boundary)) for tensor in crossing)


PLAIN = Codecs()


def coded(value: Value, codec: str) -> Value:
    """The value with its bytes on the wire: floats of over 16 bits in 2 bytes, or rows of L numbers in L + 4.

    >>> coded(Value("h", (2, 10), "float32", "batched", 0, 40, 0, True), "int8").bytes_per_sample
    14
    """
    width = WIDE.get(value.dtype)
    if width is None:
        return value
    if codec != "int8":
        return _times(value, 2, width)
    batch_axis = value.batch_axis or 0
    if len(value.shape) < 2 or batch_axis == len(value.shape) - 1:
        return value
    count = 1
    while prod(value.shape[-count:]) < ROW and count < len(value.shape) - 1 - batch_axis:
        count += 1
    row = prod(value.shape[-count:])
    return _times(value, row + SCALE_BYTES, row * width) if row else value


def _times(value: Value, part: int, whole: int) -> Value:
    return replace(
        value,
        bytes_per_sample=value.bytes_per_sample * part // whole,
        constant_bytes=value.constant_bytes * part // whole,
    )
