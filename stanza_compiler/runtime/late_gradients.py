"""Weight gradients that a backward leaves for later, because others wait for the gradients of its inputs."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from .late_layers import Piece, Swap, joined
from .rooms import Rooms


class LateGradients:
    """The gradients of a stage's Linear weights, biases and embedding tables, apart from its backward.

        with late.forward(): y = stage(x)
        late.backward([loss], [None])     x.grad is there, and the gradients of other parameters
        late.begin()                      other threads begin the rest
        late.compute()                    the rest is there

    What autograd does itself and what is late add up. A parameter with hooks of the user's is never late: its hooks
    see the whole gradient, once. A gradient of which nothing but a multiple is to be taken from the parameter is taken
    from it as it is computed, and `.grad` stays None.
    """

    def __init__(
        self,
        stage: nn.Module,
        beside: Executor | None = None,
        *,
        rate: Callable[[Tensor], float | None] = lambda parameter: None,
    ) -> None:
        """`beside` are threads that would be idle while this one computes something else.

        `rate` is asked, once a parameter's gradient can be computed, for the multiple that is its whole update; None
        where somebody else wants the gradient.
        """
        self._beside, self._rate = beside, rate
        self._begun: list[tuple[Future[None], Callable[[], None]]] = []
        self._able = {
            id(parameter)
            for parameter in stage.parameters()
            if not parameter._backward_hooks and not parameter._post_accumulate_grad_hooks
        }
        self._storages = {parameter.untyped_storage()._cdata for parameter in stage.parameters()}
        self._swapped: set[Tensor] = set()
        self._pieces: dict[Tensor, list[Piece]] = {}
        self._rooms = Rooms()
        self._backward: int | None = None

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Calls in here are those whose weight gradients may come late."""
        with Swap(self):
            yield

    def backward(self, tensors: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """Propagate `gradients` of `tensors`, all of which require one, but for the late part."""

        def begin(_: Tensor) -> None:
            self._backward = torch._C._current_graph_task_id()

        hooks = [tensor.register_hook(begin) for tensor in tensors]  # type: ignore[no-untyped-call]  # torch's gap
        try:
            torch.autograd.backward(tensors, gradients)
        finally:
            self._backward = None
            for hook in hooks:
                hook.remove()

    def expected(self) -> frozenset[Tensor]:
        """The parameters that `compute` may add to, because a forward so far took them."""
        return frozenset(self._swapped)

    def begin(self) -> None:
        """Let the threads beside this one compute what is late by now."""
        if self._beside is None:
            return
        self.join()
        while self._pieces:
            parameter = next(iter(self._pieces))
            for task in self._tasks(parameter, joined(self._pieces.pop(parameter))):
                self._begun.append((self._beside.submit(task), task))

    def join(self) -> None:
        """Complete what was begun: this thread takes the last tasks while the others are at the first.

        Call it while torch takes one thread: MKL's number of threads is one for the whole process, theirs too.
        """
        begun, self._begun = self._begun, []
        for future, task in reversed(begun):
            if future.cancel():
                task()
        for future, _ in begun:
            if not future.cancelled():
                future.result()

    def compute(self, finished: Callable[[Tensor], None] = lambda parameter: None) -> None:
        """Add the late gradients to `.grad`, in the order of the backward; `finished` is told of each parameter."""
        self.join()
        while self._pieces:
            parameter = next(iter(self._pieces))
            pieces = joined(self._pieces.pop(parameter))
            self._target(parameter).take(pieces)
            finished(parameter)

    # What the swapped calls ask and say.

    def takes(self, parameter: object) -> bool:
        """Whether the gradient of `parameter` may be late."""
        return type(parameter) is nn.Parameter and parameter.requires_grad and id(parameter) in self._able

    def holds(self, tensor: Tensor) -> bool:
        """Whether it is a parameter of the stage, or a view of one: an update may come before what needs its values."""
        return tensor.untyped_storage()._cdata in self._storages

    def expect(self, parameter: Tensor) -> None:
        self._swapped.add(parameter)

    @property
    def is_under_way(self) -> bool:
        """Whether `backward` runs this very backward, not one within it or within forward."""
        return self._backward is not None and self._backward == torch._C._current_graph_task_id()

    def leave(self, parameter: Tensor, piece: Piece) -> None:
        self._pieces.setdefault(parameter, []).append(piece)

    def _tasks(self, parameter: Tensor, pieces: list[Piece]) -> Iterator[Callable[[], None]]:
        target = self._target(parameter)
        if len(pieces) > 1:
            yield partial(target.take, pieces)
        else:
            for piece, part in pieces[0].cut(target.tensor):
                yield partial(replace(target, tensor=part).take, [piece])

    def _target(self, parameter: Tensor) -> "_Target":
        if parameter.grad is not None:
            return _Target(parameter.grad)
        rate = self._rate(parameter)
        if rate is not None:
            return _Target(parameter.detach(), factor=-rate)
        # On a GPU torch keeps freed memory itself.
        on_cpu = parameter.device.type == "cpu"
        parameter.grad = self._rooms.lend(parameter, parameter) if on_cpu else torch.empty_like(parameter)
        return _Target(parameter.grad, is_new=True)


@dataclass(frozen=True, slots=True)
class _Target:
    """Where `factor` times a gradient is added; a new one has no values yet."""

    tensor: Tensor
    factor: float = 1.0
    is_new: bool = False

    @torch.no_grad()
    def take(self, pieces: Sequence[Piece]) -> None:
        first, *others = pieces
        if self.is_new:
            first.write(self.tensor)
        else:
            first.add(self.tensor, self.factor)
        for piece in others:
            piece.add(self.tensor, self.factor)
