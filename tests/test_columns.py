"""A chain of layers shared by hosts against the same chain whole."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stanza_compiler.runtime.columns import ColumnLinear, Masks, split_columns
from stanza_compiler.runtime.peers import Peers
from tests.thread_peers import on_hosts

COLUMNS = {"0": 7, "3": 5, "5": 4}
HOSTS = 3


def chain() -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    layers = [nn.Linear(6, 7), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(7, 5, bias=False), nn.Tanh()]
    made = nn.Sequential(*layers, nn.Linear(5, 4)).double()
    for parameter in made.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return made


def test_hosts_have_the_columns_and_gradients_of_the_whole_chain_and_its_dropout() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(9, 6, generator=generator, dtype=torch.float64)
    wanted = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    whole, leaf = chain(), x.clone().requires_grad_()
    torch.manual_seed(5)
    expected = whole(leaf)
    expected.backward(wanted)

    def on_host(peers: Peers) -> tuple[Tensor, Tensor, list[Tensor]]:
        stage, own = chain(), x.clone().requires_grad_()
        weights = dict(stage.named_parameters())
        split_columns(stage, COLUMNS, peers, torch.device("cpu"))
        masks = Masks(5, torch.device("cpu"))
        for layer in stage.modules():
            if isinstance(layer, ColumnLinear):
                layer.register_forward_hook(masks.follow)
        for name, parameter in stage.named_parameters():
            rows = peers.columns(COLUMNS[name.partition(".")[0]])
            parameter.data.copy_(weights[name].data[rows.start : rows.stop])
        with masks:
            output = stage(own)
        columns = peers.columns(4)
        output.backward(wanted[:, columns.start : columns.stop])
        assert own.grad is not None
        gradients = [parameter.grad for parameter in stage.parameters()]
        assert all(gradient is not None for gradient in gradients)
        return output.detach(), own.grad, [gradient for gradient in gradients if gradient is not None]

    results = on_hosts(HOSTS, on_host)
    torch.testing.assert_close(torch.cat([output for output, _, _ in results], 1), expected.detach())
    torch.testing.assert_close(sum(gradient for _, gradient, _ in results), leaf.grad)
    for place, parameter in enumerate(whole.parameters()):
        torch.testing.assert_close(torch.cat([gradients[place] for _, _, gradients in results]), parameter.grad)


def test_dropout_of_everything_of_nothing_and_outside_of_training() -> None:
    x = torch.ones(4, 3)
    with Masks(0, torch.device("cpu")):
        assert torch.equal(F.dropout(x, 0.0), x)
        assert torch.equal(F.dropout(x, 0.9, training=False), x)
        assert torch.equal(F.dropout(x, 1.0), torch.zeros(4, 3))
