"""Allreduces of DistributedDataParallel that backward begins but does not wait for."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .codecs import PLAIN, Codecs
from .transfer import Transfer


class LateSums:
    """The sums over a group that a backward has begun; until `wait` each gradient is this rank's own share.

    DistributedDataParallel would end backward by waiting for its buckets. Here it is told at once that a bucket is
    done, so that backward returns and this rank computes something else while they travel.

        backward   conv5 ─┐ conv4 ─┐ conv3 ... conv1 ─┐  the FC part's rest   wait
        buckets           └────────┴─── on the link ──┴───────────────────────┘
    """

    def __init__(self, codecs: Codecs = PLAIN) -> None:
        """Dense gradients travel as `codecs` say."""
        self._codecs = codecs
        self._begun: list[dist.Work] = []
        self._coded: list[tuple[Tensor, Tensor]] = []

    def attach(self, replica: nn.Module, group: dist.ProcessGroup) -> None:
        """Sum, not average, the buckets of `replica`, whose gradients have to be views of them."""
        assert isinstance(replica, DistributedDataParallel)
        assert replica.gradient_as_bucket_view

        def begin(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]  # torch's gap
            gradients = bucket.buffer()
            dtype = gradients.dtype
            travelling = gradients.to(dtype if gradients.is_sparse else self._codecs.summed_in(dtype))
            if travelling is not gradients:
                self._coded.append((gradients, travelling))
            work = dist.all_reduce(travelling, group=group, async_op=True)
            assert work is not None
            self._begun.append(work)
            done: torch.futures.Future[Tensor] = torch.futures.Future(
                devices=None if gradients.device.type == "cpu" else [gradients.device]
            )
            done.set_result(gradients)
            return done

        replica.register_comm_hook(None, begin)

    def wait(self) -> None:
        """Return when the gradients are the sums.

        Raises EdgeError when a rank of the group ended or the group's timeout passed.
        """
        Transfer(self._begun, "sum of gradients").wait()
        for gradients, travelled in self._coded:
            gradients.copy_(travelled)
        self._begun, self._coded = [], []
