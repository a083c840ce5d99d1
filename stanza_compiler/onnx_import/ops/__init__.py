"""How each ONNX op is told to torch.

A handler takes the builder, the node's inputs (None for one left out) and its attributes by name, with the defaults of
the ONNX specification, and gives the node's output or a list of its outputs. https://onnx.ai/onnx/operators says what
each one computes.
"""

from collections.abc import Callable
from typing import Any

from stanza_compiler.onnx_import.ops import (
    arithmetic,
    attention,
    convolutions,
    elementwise,
    indexing,
    matrices,
    norms,
    pools,
    recurrent,
    reductions,
    resize,
    shapes,
)

OPS: dict[str, Callable[..., Any]] = {
    **arithmetic.OPS,
    **attention.OPS,
    **convolutions.OPS,
    **elementwise.OPS,
    **indexing.OPS,
    **matrices.OPS,
    **norms.OPS,
    **pools.OPS,
    **recurrent.OPS,
    **reductions.OPS,
    **resize.OPS,
    **shapes.OPS,
}
