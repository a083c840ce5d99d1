"""A bucketed asynchronous sum of gradients over the hosts of a stage."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .codecs import PLAIN, Codecs
from .transfer import waiting_for

BUCKET_BYTES = 1 << 20


@dataclass(slots=True)
class _Bucket:
    """Parameters reduced in one call; one alone is reduced in place, a sparse one is always alone."""

    parameters: list[nn.Parameter]
    sparse: bool
    arrived: set[int] = field(default_factory=set)
    payload: Tensor | None = None
    work: dist.Work | None = None


class GradientSum:
    """Sums gradients over a group, each bucket as soon as its last gradient exists.

    Buckets start in the same fixed order on every rank. Only backwards between `arm` and `finish` start them;
    `finish` starts the rest, zeros standing in for absent gradients, and puts the sums into `.grad`.

        backward   fc2.weight ─┐ fc2.bias ─┐   fc1.weight ──┐ fc1.bias ─┐
        buckets                └──── 0 ────┴─ starts        └──── 1 ────┴─ starts      finish: waits for 0, 1
    """

    def __init__(
        self,
        parameters: Sequence[tuple[nn.Parameter, bool]],
        group: dist.ProcessGroup,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        codecs: Codecs = PLAIN,
    ) -> None:
        """`parameters` in original order, each with whether its gradient is sparse; the same on every rank.

        Dense gradients travel as `codecs` say.
        """
        self._group, self._codecs = group, codecs
        self._buckets = _fill_buckets(parameters, bucket_bytes)
        self._bucket_of = {id(parameter): bucket for bucket in self._buckets for parameter in bucket.parameters}
        self._started = 0
        self._armed = False
        self._later: frozenset[int] = frozenset()
        for parameter, _ in parameters:
            parameter.register_post_accumulate_grad_hook(self.arrived)  # type: ignore[no-untyped-call]  # torch gives it no types

    def arm(self, later: Iterable[Tensor] = ()) -> None:
        """The next backward is the last one before `finish` that reaches a parameter, but for those in `later`."""
        self._armed = True
        self._later = frozenset(map(id, later))

    def arrived(self, parameter: Tensor) -> None:
        """Hear that the gradient of `parameter` is complete, if it is armed for that; autograd itself says so too.

        Parameters that it does not sum are none of its business.
        """
        if not self._armed or id(parameter) in self._later or id(parameter) not in self._bucket_of:
            return
        arrived = self._bucket_of[id(parameter)].arrived
        assert id(parameter) not in arrived, "a gradient grew after its sum had started"
        arrived.add(id(parameter))
        while self._started < len(self._buckets):
            bucket = self._buckets[self._started]
            if len(bucket.arrived) < len(bucket.parameters):
                return
            self._start_next()

    def finish(self) -> int:
        """Wait until every gradient is the sum over the group; return the bytes this rank sent.

        A ring over n ranks sends 2(n-1)/n of a dense tensor; of a sparse one each rank's rows go to n-1 others.
        """
        while self._started < len(self._buckets):
            self._start_next()
        size = dist.get_world_size(self._group)
        sent = 0
        for bucket in self._buckets:
            assert bucket.work is not None
            assert bucket.payload is not None
            rows = _bytes(bucket.payload) if bucket.sparse else 0
            with waiting_for("sum of the hosts' gradients"):
                bucket.work.wait()
            sent += (size - 1) * rows if bucket.sparse else 2 * (size - 1) * _bytes(bucket.payload) // size
            _put_back(bucket)
        self._started, self._armed, self._later = 0, False, frozenset()
        return sent

    def _start_next(self) -> None:
        bucket = self._buckets[self._started]
        gradients = [_gradient(parameter, sparse=bucket.sparse) for parameter in bucket.parameters]
        if len(gradients) == 1:
            bucket.payload = gradients[0]
        else:
            bucket.payload = torch.cat([gradient.reshape(-1) for gradient in gradients])
        if not bucket.sparse:
            bucket.payload = bucket.payload.to(self._codecs.summed_in(bucket.payload.dtype))
        bucket.work = dist.all_reduce(bucket.payload, group=self._group, async_op=True)
        self._started += 1


def no_rows(parameter: nn.Parameter) -> Tensor:
    """A sparse gradient of zero."""
    return torch.sparse_coo_tensor(
        torch.empty(1, 0, dtype=torch.int64, device=parameter.device),
        torch.empty(0, *parameter.shape[1:], dtype=parameter.dtype, device=parameter.device),
        parameter.shape,
        check_invariants=False,
    )


def _fill_buckets(parameters: Sequence[tuple[nn.Parameter, bool]], bucket_bytes: int) -> list[_Bucket]:
    """Last parameter first, the order in which backward makes gradients."""
    buckets: list[_Bucket] = []
    room = 0
    for parameter, sparse in reversed(parameters):
        size = _bytes(parameter)
        fits = buckets and not sparse and not buckets[-1].sparse and size <= room
        if fits and buckets[-1].parameters[0].dtype == parameter.dtype:
            buckets[-1].parameters.append(parameter)
            room -= size
        else:
            buckets.append(_Bucket([parameter], sparse))
            room = bucket_bytes - size
    return buckets


def _gradient(parameter: nn.Parameter, *, sparse: bool) -> Tensor:
    if parameter.grad is not None:
        return parameter.grad if sparse else parameter.grad.contiguous()
    if sparse:
        return no_rows(parameter)
    return torch.zeros_like(parameter, memory_format=torch.contiguous_format)


def _put_back(bucket: _Bucket) -> None:
    assert bucket.payload is not None
    first = bucket.parameters[0]
    if bucket.sparse:
        first.grad = bucket.payload
    elif len(bucket.parameters) == 1:
        first.grad = bucket.payload.to(first.dtype)
    else:
        sizes = [parameter.numel() for parameter in bucket.parameters]
        pieces = torch.split(bucket.payload.to(first.dtype), sizes)
        for parameter, summed in zip(bucket.parameters, pieces, strict=True):
            parameter.grad = summed.view_as(parameter)
    bucket.arrived.clear()
    bucket.payload = bucket.work = None


def _bytes(tensor: Tensor) -> int:
    if tensor.is_sparse:
        return _bytes(tensor._indices()) + _bytes(tensor._values())
    return tensor.nbytes
