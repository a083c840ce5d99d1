"""How much of the boundary a codec loses, on the model's own activations and their gradients."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from stanza_compiler.comparison import resized_targets
from stanza_compiler.loader import Source
from stanza_compiler.plan import Boundary, Plan
from stanza_compiler.runtime.codecs import decode, encode, is_coded, lifting
from stanza_compiler.runtime.loss import measure
from stanza_compiler.traced import Interpreter, Trace, copy_sharing_parameters


def codec_error(source: Source, traced: Trace, plan: Plan) -> Plan:
    """The plan with |decoded - tensor| / |tensor| for every boundary tensor that its codec changes.

    Of one training step on the example, loss included; the model, its gradients and random numbers stay as they are.
    """
    codec, samples = plan.codecs.boundary, source.call.batch_size
    root = copy_sharing_parameters(traced.root)
    root.training = True
    wanted = {boundary.name for boundary in plan.boundary}
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(0)
        keeper = _Keeper(traced, root, wanted)
        args, kwargs = source.call.arguments(samples)
        output = keeper.run(*source.call.tensors(args, kwargs))
        loss = measure(source.hooks, output, resized_targets(source.targets, samples), samples=samples)
        roots = {name: value for name, value in keeper.values.items() if value.requires_grad}
        found = torch.autograd.grad(loss.total / loss.count, list(roots.values()), allow_unused=True)
    gradients = dict(zip(roots, found, strict=True))
    factor = lifting(samples)

    def judged(boundary: Boundary) -> Boundary:
        value = keeper.values.get(boundary.name)
        if value is None or not is_coded(codec, value.dtype, value.dim(), boundary.batch_axis or 0):
            return boundary
        return replace(
            boundary,
            codec_error=_lost(codec, value.detach(), boundary.batch_axis or 0, 1.0),
            gradient_codec_error=_lost(codec, gradients.get(boundary.name), boundary.batch_axis or 0, factor),
        )

    return replace(plan, boundary=tuple(map(judged, plan.boundary)))


class _Keeper(Interpreter):
    """Keeps the tensors of some names."""

    def __init__(self, traced: Trace, root: torch.nn.Module, wanted: set[str]) -> None:
        super().__init__(traced, root)
        self.values: dict[str, Tensor] = {}
        self._wanted = wanted

    def run_call(self, node: fx.Node) -> Any:
        value = super().run_call(node)
        name = self.traced.names.get(node)
        if name in self._wanted and isinstance(value, Tensor):
            self.values[name] = value
        return value


def _lost(codec: str, tensor: Tensor | None, batch_axis: int, factor: float) -> float | None:
    """The share of the norm; None where there is nothing to lose."""
    if tensor is None or not tensor.count_nonzero():
        return None
    payload = encode(codec, tensor, batch_axis, factor)
    arrived = decode(codec, payload, tensor.dtype, tensor.shape, factor)
    return float((arrived - tensor).norm() / tensor.norm())
