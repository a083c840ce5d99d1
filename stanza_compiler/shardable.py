"""Which calls of a model several hosts can share by columns, and whether its loss and optimiser let them."""

import torch
import torch.nn.functional as F
from torch import fx, nn

from stanza_compiler.cuts import parameter_users
from stanza_compiler.loader import Source, first_line
from stanza_compiler.opgraph import OpGraph, Shardable
from stanza_compiler.runtime.loss import measure
from stanza_compiler.runtime.peers import ALONE
from stanza_compiler.runtime.sharded_scores import ShardedScores
from stanza_compiler.structure import Slot
from stanza_compiler.traced import Trace, regions
from stanza_compiler.update_trial import of_rows

_POINTWISE_LAYERS = (
    *(nn.Identity, nn.Dropout, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish),
)
_POINTWISE_CALLS = {
    *(torch.relu, torch.relu_, torch.tanh, torch.sigmoid, F.dropout, F.relu, F.relu6, F.leaky_relu, F.elu, F.celu),
    *(F.selu, F.gelu, F.silu, F.mish, F.tanh, F.sigmoid, F.logsigmoid, F.softplus, F.softsign, F.hardtanh),
    *(F.hardsigmoid, F.hardswish),
    *("relu", "relu_", "tanh", "sigmoid", "contiguous"),
}


def shardable(source: Source, traced: Trace, graph: OpGraph) -> Shardable:
    """What of the model hosts may share, as the planner needs it; the loss and the optimiser are tried."""
    linears, pointwise, stateless = set(), set(), set()
    users = parameter_users(graph)
    nodes = {name: node for node, name in traced.names.items()}
    for op in graph.ops:
        node = nodes[op.name]
        if op.is_size or regions(node):
            continue
        layer = traced.root.get_submodule(str(node.target)) if node.op == "call_module" else None
        is_own = all(len(users[name]) == 1 and not graph.parameter[name].aliases for name in op.parameters)
        if type(layer) is nn.Linear and is_own and op.name == node.target and op.parameters:
            linears.add(op.name)
        elif _is_pointwise(node, layer) and not op.parameters:
            pointwise.add(op.name)
        elif not (op.parameters or op.buffers or op.is_random or op.uncounted):
            stateless.add(op.name)
    why_not, takes_all = "", ""
    if not isinstance(traced.result, Slot) or len(graph.outputs) != 1:
        why_not = "the model's output is more than one tensor"
    elif linears:
        why_not, takes_all = _of_loss(source, graph)
        why_not = why_not or of_rows(source)
    return Shardable(frozenset(linears), frozenset(pointwise), frozenset(stateless), why_not, takes_all)


def _is_pointwise(node: fx.Node, layer: nn.Module | None) -> bool:
    """Whether each number of the result depends on one number of the one tensor that is read."""
    if layer is not None:
        return type(layer) in _POINTWISE_LAYERS
    return node.op in ("call_function", "call_method") and node.target in _POINTWISE_CALLS


def _of_loss(source: Source, graph: OpGraph) -> tuple[str, str]:
    """(why the loss can't be had of sharded scores, what in it takes all of them), of one loss of random scores."""
    value = graph.value[graph.outputs[0]]
    dtype: torch.dtype = getattr(torch, value.dtype)
    if not dtype.is_floating_point or not value.shape:
        return "the model's output is no tensor of scores", ""
    with torch.random.fork_rng():
        local = torch.randn(value.shape).to(dtype).requires_grad_()
    scores = ShardedScores.of(local.view_as(local), value.shape[-1], ALONE)
    try:
        with torch.random.fork_rng():
            total = measure(source.hooks, scores, source.targets, samples=graph.batch_size).total
            torch.autograd.backward(total, torch.ones_like(total))
    except Exception as error:
        return f"loss_fn takes no sharded scores ({type(error).__name__}: {first_line(error)})", ""
    return "", scores.uses.gathered_by
