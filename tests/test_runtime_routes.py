"""What crosses into each segment, and how one tensor is shared among ranks."""

from pathlib import Path

import pytest
import torch

from stanza_compiler.runtime import Example, Program, Segment
from stanza_compiler.runtime.errors import DisagreementError
from stanza_compiler.runtime.layout import Layout
from stanza_compiler.runtime.plan_file import Crossing, PlanFile, Sharding
from stanza_compiler.runtime.routes import find_kinds, find_routes
from stanza_compiler.runtime.shares import share_out

BOTH_ENDS = (
    Segment("fc", "segment_0", takes=("ids",), gives=("emb", "mask")),
    Segment("conv", "forward", takes=("emb", "x"), gives=("h",)),
    Segment("fc", "segment_2", takes=("h", "mask", "ids", "emb", "x"), gives=()),
)


def kinds(single_host: str = "", *names: str) -> dict[str, Crossing]:
    program = Program(
        Path(),
        stages={},
        segments=BOTH_ENDS,
        build_model=dict,
        bind_inputs=dict,
        example_inputs={"ids": Example("int64", ()), "x": Example("float32", (), batch_axis=None)},
    )
    boundary = {name: Crossing("batched", 1) for name in names}
    return dict(
        find_kinds(program, PlanFile(True, 1, Layout(1, 1, "dedicated"), single_host, boundary, (), Sharding({}, "")))
    )


def test_a_host_keeps_what_it_took_or_gave_and_is_sent_the_rest() -> None:
    routes = find_routes(BOTH_ENDS)
    assert [route.crossing for route in routes] == [("ids",), ("emb",), ("h", "x")]
    assert [route.kept for route in routes] == [(), ("x",), ("mask", "ids", "emb")]
    conv_first = (Segment("conv", "forward", ("x",), ("h",)), Segment("fc", "forward", ("h", "x"), ()))
    assert [(route.receives, route.crossing) for route in find_routes(conv_first)] == [(False, ()), (True, ("h", "x"))]


def test_only_a_tensor_that_stays_on_the_host_may_be_missing_in_the_plan() -> None:
    found = kinds("", "emb", "h")
    assert found["ids"] == Crossing("batched", 0)
    assert found["x"] == Crossing("replicated", None)
    assert found["emb"] == Crossing("batched", 1)
    assert found["mask"] == Crossing("per-rank", None)
    with pytest.raises(ValueError, match="lacks 'h', which segment 2 takes"):
        kinds("", "emb")
    with pytest.raises(ValueError, match="lacks 'mask', and one FC host must see the whole batch"):
        kinds("batch statistics", "emb", "h")


def test_what_a_segment_gave_is_shared_by_samples_and_its_gradients_are_put_together_again() -> None:
    tensor = torch.arange(12.0).view(2, 6)
    shared = share_out(tensor, Crossing("batched", 1), {4: 2, 5: 1}, "emb")
    pieces = dict(shared.pieces(tensor))
    assert torch.equal(pieces[4], tensor[:, :4])
    assert torch.equal(pieces[5], tensor[:, 4:])
    together = shared.gradient(pieces)
    assert together is not None
    assert torch.equal(together, tensor)
    lacking = shared.gradient({5: pieces[5]})
    assert lacking is not None
    assert lacking[:, :4].abs().max() == 0
    assert shared.gradient({}) is None
    for_all = share_out(tensor, Crossing("replicated", None), {4: 2, 5: 1}, "gain")
    assert all(piece is tensor for _, piece in for_all.pieces(tensor))
    summed = for_all.gradient({4: tensor, 5: tensor})
    assert summed is not None
    assert torch.equal(summed, 2 * tensor)
    with pytest.raises(DisagreementError, match="'emb' has 2 rows along axis 0 for 3 samples"):
        share_out(tensor, Crossing("batched", 0), {4: 2, 5: 1}, "emb")
