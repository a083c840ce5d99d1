"""How the parts of several CONV ranks become what an FC segment takes."""

import torch
from torch import Tensor

from stanza_compiler.runtime.assembly import Assembly
from stanza_compiler.runtime.plan_file import Crossing
from stanza_compiler.runtime.tree import flatten
from stanza_compiler.runtime.wires import Message, describe_wires

CPU = torch.device("cpu")


def assemble(parts: dict[int, dict[str, Tensor]], kinds: dict[str, Crossing], targets: dict[int, Tensor]) -> Assembly:
    """An assembly whose slots hold the parts; ranks with samples: 1 has 2, 2 has 1."""
    tensors, template = flatten({"label": targets[1]})
    message = Message(describe_wires(parts[1], tensors, kinds), template, 1)
    assembly = Assembly(message, {1: 2, 2: 1}, CPU)
    for rank, values in parts.items():
        tensors = (*values.values(), targets[rank])
        for slot, value in zip(assembly.slots(rank, [tuple(t.shape) for t in tensors]), tensors, strict=True):
            with torch.no_grad():
                slot.copy_(value)
    return assembly


def test_batched_parts_are_one_tensor_in_rank_order_and_its_gradient_goes_back_in_slices() -> None:
    kinds = {"rows": Crossing("batched", 0), "columns": Crossing("batched", 1), "table": Crossing("replicated", None)}
    full = {"rows": torch.randn(6, 2), "columns": torch.randn(4, 3), "table": torch.randn(5)}
    parts = {
        1: {"rows": full["rows"][:4], "columns": full["columns"][:, :2], "table": full["table"]},
        2: {"rows": full["rows"][4:], "columns": full["columns"][:, 2:], "table": torch.zeros(5)},
    }
    for values in parts.values():
        for value in values.values():
            value.requires_grad_()
    assembly = assemble(parts, kinds, {1: torch.tensor([7, 8]), 2: torch.tensor([9])})
    (delivery,) = assembly.join()
    assert delivery.samples == {1: 2, 2: 1}
    assert delivery.targets["label"].tolist() == [7, 8, 9]
    for tensor, expected in zip(delivery.tensors.values(), full.values(), strict=True):
        assert torch.equal(tensor, expected)
        assert tensor.is_leaf
        assert tensor.requires_grad
    pieces = {(leaf.wire, rank): piece for leaf in assembly.leaves for rank, piece in leaf.pieces(leaf.tensor.detach())}
    assert torch.equal(pieces[0, 2], full["rows"][4:])
    assert torch.equal(pieces[1, 1], full["columns"][:, :2])
    assert torch.equal(pieces[2, 1], full["table"])
    assert (2, 2) not in pieces


def test_per_rank_tensors_and_ragged_targets_give_each_rank_a_delivery_of_its_own() -> None:
    batched = {"rows": Crossing("batched", 0)}
    parts = {1: {"rows": torch.randn(2, 2)}, 2: {"rows": torch.randn(1, 2)}}
    ragged = {1: torch.tensor([1, 2, 3]), 2: torch.tensor([4])}
    even = {1: torch.tensor([1, 2]), 2: torch.tensor([3])}
    for kinds, targets in ((batched, ragged), ({"rows": Crossing("per-rank", None)}, even)):
        deliveries = assemble(parts, kinds, targets).join()
        assert [delivery.samples for delivery in deliveries] == [{1: 2}, {2: 1}]
        for rank, delivery in zip((1, 2), deliveries, strict=True):
            assert torch.equal(delivery.tensors["rows"], parts[rank]["rows"])
            assert torch.equal(delivery.targets["label"], targets[rank])


def test_parts_of_different_width_are_not_put_together() -> None:
    parts = {1: {"rows": torch.randn(2, 2)}, 2: {"rows": torch.randn(1, 3)}}
    even = {1: torch.tensor([1, 2]), 2: torch.tensor([3])}
    deliveries = assemble(parts, {"rows": Crossing("batched", 0)}, even).join()
    assert [delivery.tensors["rows"].shape for delivery in deliveries] == [(2, 2), (1, 3)]
