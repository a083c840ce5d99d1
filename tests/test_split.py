"""Grouping nodes into segments."""

from pathlib import Path

import pytest
import torch

from stanza_compiler.cluster import Cluster
from stanza_compiler.loader import load
from stanza_compiler.options import Options
from stanza_compiler.passes.coupling import Coupling
from stanza_compiler.passes.legality import legality
from stanza_compiler.passes.partition import partition
from stanza_compiler.passes.profile import profile
from stanza_compiler.passes.split import Stages, split
from stanza_compiler.passes.trace import trace
from stanza_compiler.plan import Request

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3, padding=1)
        self.wide = nn.Linear(32, 400)
        self.out = nn.Linear(400, 8)
    def forward(self, x, late):
        n = x.size(0)
        h = self.conv(x)
        k = h.size(2) * 4
        early = h.mean(2)
        h = self.wide(h.reshape(n, k))
        return self.out(h).view(n, -1) + late, early

def build_model():
    return Net()

def example_inputs():
    return torch.randn(4, 1, 8), torch.randn(4, 8)
"""


def split_after(cut: str, folder: Path) -> Stages:
    (folder / "net.py").write_text(MODEL)
    with load(Options(str(folder / "net.py"))) as source:
        traced = trace(source, verify=False)
        profiled = profile(source, traced)
        rules = legality(profiled, traced.root, Coupling())
        plan = partition(profiled.graph, rules, Cluster(), Request(strategy="separate", cut_after=cut))
        return split(traced, plan, profiled.graph)


def test_late_inputs_early_outputs_and_the_cut_tensor_cross(tmp_path: Path) -> None:
    conv, fc = split_after("reshape", tmp_path).segments
    assert (conv.role, conv.takes) == ("conv", ("x",))
    assert fc.takes == ("late", *conv.gives)  # the last view takes the size of the batch from what is there
    assert "reshape" in conv.gives
    assert any(node.name == "mean" for segment in (conv, fc) for node in segment.graph.nodes)


def test_a_size_is_computed_where_it_is_needed_and_never_sent(tmp_path: Path) -> None:
    conv, fc = split_after("conv", tmp_path).segments
    sizes = {node.name for node in fc.graph.nodes if node.op == "call_method" and node.target == "size"}
    assert sizes
    assert not {"size", "size_1", "mul"} & set(conv.gives)


def test_the_segments_in_a_row_compute_what_the_model_computes(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    with load(Options(str(tmp_path / "net.py"))) as source:
        values = dict(zip(("x", "late"), (torch.randn(3, 1, 8), torch.randn(3, 8)), strict=True))
        expected = source.module(*values.values())
        for segment in split_after("conv", tmp_path).segments:
            interpreter = torch.fx.Interpreter(source.module, graph=segment.graph)
            output = interpreter.run(*[values[name] for name in segment.takes])
            given = (output,) if len(segment.gives) == 1 else output
            values |= dict(zip(segment.gives, given, strict=False))
        torch.testing.assert_close(output, expected)


def test_one_segment_holds_the_whole_model(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    with load(Options(str(tmp_path / "net.py"))) as source:
        traced = trace(source, verify=False)
        profiled = profile(source, traced)
        rules = legality(profiled, traced.root, Coupling())
        plan = partition(profiled.graph, rules, Cluster(), Request(strategy="data-parallel"))
        stages = split(traced, plan, profiled.graph)
    assert [(segment.role, segment.takes, segment.gives) for segment in stages.segments] == [
        ("model", ("x", "late"), ())
    ]
    with pytest.raises(StopIteration):
        plan.stage("fc")
