"""FLOPs of layers as modules and as torch.export writes them, forward and backward, against figures by hand."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stanza_compiler.opgraph import OpGraph
from stanza_compiler.passes.profile import profile
from stanza_compiler.structure import Slot
from stanza_compiler.traced import Trace
from tests.source_of import source_of
from tests.test_profile import Calling, graph_of


def exported(model: nn.Module, *inputs: torch.Tensor) -> OpGraph:
    """The graph of the model as torch.export writes it: calls of aten's functions alone."""
    shapes = {"inputs": tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs)}
    program = torch.export.export(model, inputs, dynamic_shapes=shapes, strict=False)
    root = program.module(check_guards=False)
    names = {node: node.name for node in root.graph.nodes if node.op not in ("get_attr", "output")}
    return profile(source_of(model, *inputs), Trace(root, root.graph, names, Slot(0), "export")).graph


ENCODER_LAYER = 2 * 5 * (4 * 8 * 8 + 2 * 5 * 8 + 2 * 8 * 16)  # projections, attention and feed-forward of 5 tokens


@pytest.mark.parametrize("graph", [graph_of, exported])
@pytest.mark.parametrize(
    ("layer", "example", "forward", "backward"),
    [
        # per step and direction 2 * gates * hidden * (inputs + hidden); the second layer reads both directions.
        # Backward: as much for the weights, and for what each layer reads but the input and the first state.
        (
            nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True),
            (5, 3),
            2 * 5 * 2 * 4 * 4 * ((3 + 4) + (8 + 4)),
            2 * 2 * 4 * 4 * (5 * (3 + 4) + 5 * (8 + 4) + 4 * 4 + 5 * 8 + 4 * 4),
        ),
        # a step of projected state: the gates' products, then the projection
        (
            nn.LSTM(3, 4, batch_first=True, proj_size=2),
            (5, 3),
            5 * 2 * (4 * 4 * (3 + 2) + 4 * 2),
            5 * 2 * (4 * 4 * (3 + 2) + 4 * 2) + 4 * 2 * 4 * 4 * 2 + 5 * 2 * 4 * 2,
        ),
        (nn.GRU(3, 4, batch_first=True), (5, 3), 5 * 2 * 3 * 4 * (3 + 4), 2 * 3 * 4 * (5 * (3 + 4) + 4 * 4)),
        (nn.RNN(3, 4, batch_first=True), (5, 3), 5 * 2 * 4 * (3 + 4), 2 * 4 * (5 * (3 + 4) + 4 * 4)),
        (nn.GRUCell(3, 4), (3,), 2 * 3 * 4 * (3 + 4), 2 * 3 * 4 * (3 + 4)),
        # twice the forward, less the gradient of the input through the projection to queries, keys and values
        (
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
            (5, 8),
            ENCODER_LAYER,
            2 * ENCODER_LAYER - 2 * 5 * 3 * 8 * 8,
        ),
        (
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
            (5, 8),
            ENCODER_LAYER,
            2 * ENCODER_LAYER - 2 * 5 * 3 * 8 * 8,
        ),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().requires_grad_(False), (5, 8), ENCODER_LAYER, 0),
        (nn.Conv2d(4, 8, 3, groups=2), (4, 6, 6), 2 * 16 * 8 * 2 * 9, 2 * 16 * 8 * 2 * 9),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), (4, 5, 5), 2 * 25 * 4 * 3 * 9, 2 * 25 * 4 * 3 * 9),
        (nn.Linear(3, 5), (7, 3), 2 * 7 * 3 * 5, 2 * 7 * 3 * 5),
    ],
    ids=["lstm", "projected", "gru", "rnn", "cell", "encoder", "eval", "frozen", "grouped", "transposed", "linear"],
)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.filterwarnings("ignore:The tensor attributes")  # of export, which a recurrent layer's own list puzzles
def test_a_layer_costs_the_same_as_a_module_and_as_exported_calls(
    graph: Callable[..., OpGraph], layer: nn.Module, example: tuple[int, ...], forward: int, backward: int
) -> None:
    found = graph(Calling(lambda self, x: self.layer(x), layer=layer), torch.ones(2, *example))
    assert found.forward_flops == forward
    assert sum(op.backward_flops for op in found.ops) == backward
    assert found.constant_flops == 0
    assert not any(op.uncounted for op in found.ops)


@pytest.mark.parametrize("graph", [graph_of, exported])
def test_functions_of_several_inputs_cost_the_same_as_exported_calls(graph: Callable[..., OpGraph]) -> None:
    bilinear = Calling(lambda self, a, b: self.layer(a, b), layer=nn.Bilinear(3, 4, 5))
    assert graph(bilinear, torch.ones(2, 3), torch.ones(2, 4)).forward_flops == 2 * 5 * 4 * (3 + 1)
    product = Calling(lambda self, a, b: torch.einsum("bij,bjk->bik", a, b))
    assert graph(product, torch.ones(2, 3, 4), torch.ones(2, 4, 5)).forward_flops == 2 * 3 * 4 * 5
    attention = Calling(lambda self, q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True))
    assert graph(attention, torch.ones(2, 4, 5, 6), torch.ones(2, 2, 5, 6)).forward_flops == 2 * 2 * 4 * 5 * 5 * 6
