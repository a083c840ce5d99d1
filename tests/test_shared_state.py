"""Programs whose two stages hold one parameter, against the uncut model."""

import ast
import json
from pathlib import Path

import pytest

from stanza_compiler.cli import main
from stanza_compiler.cluster import Cluster
from stanza_compiler.compiler import compile_source
from stanza_compiler.options import Options
from stanza_compiler.plan import Plan, Request
from tests.against_model import assert_is_the_model

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F


def build_model():
    return Net()


def example_inputs():
    return (torch.randint(50, (4, 7)),)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.emb = nn.Embedding(50, 8)
        self.lm = nn.Linear(8, 50)
"""
TIED = """
        self.lm.weight = self.emb.weight

    def forward(self, ids):
        return self.lm(self.body(self.emb(ids)))
"""
CALLED = """
        self.shared = nn.Linear(8, 8)

    def forward(self, ids):
        h = self.shared(self.emb(ids)).relu()
        return self.lm(self.shared(self.body(h)))
"""
BARE = """
        self.mm = nn.Parameter(torch.randn(50, 8))

    def forward(self, ids):
        return F.linear(self.body(F.embedding(ids, self.mm)).relu(), self.mm)
"""
READ = """
        self.act = nn.ReLU()

    def forward(self, ids):
        return F.linear(self.act(self.body(self.emb(ids))), self.emb.weight)
"""
FIRST_NAME_UNUSED = """
        self.w = nn.Parameter(torch.randn(50, 8))
        self.emb.weight = self.lm.weight = self.w
        self.spare = nn.Linear(8, 50)
        self.spare.weight = self.w

    def forward(self, ids):
        return self.lm(self.body(self.emb(ids)))
"""
ALIASED = """
        self.bodies = nn.ModuleList([self.body, nn.Linear(8, 8)])

    def forward(self, ids):
        return self.lm(self.bodies[0](self.bodies[1](self.body(self.emb(ids)))))
"""
# Tensors of layers that the other side calls: one deep in a layer, one in a Sequential.
DEEP = """
        self.blocks = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 8))

    def forward(self, ids):
        h = self.blocks(self.emb(ids))
        h = self.body(F.linear(h, self.blocks[0].self_attn.out_proj.weight))
        return self.lm(h + self.blocks[1].bias)
"""
# An LSTM keeps its weights in a list of its own as well.
RECURRENT = """
        self.rnn = nn.LSTM(8, 8, batch_first=True)

    def forward(self, ids):
        h = self.rnn(self.body(self.emb(ids)) @ self.rnn.weight_hh_l0[:8])[0]
        return self.lm(self.rnn(h)[0])
"""
# Names that are no identifiers, or those of our own methods.
ODDLY_NAMED = """
        self.register_parameter("class", nn.Parameter(torch.randn(50, 8)))
        self.add_module('an "odd" one', nn.Linear(8, 50))
        self.add_module("run", nn.Linear(8, 8))
        self.get_submodule('an "odd" one').weight = self._parameters["class"]

    def forward(self, ids):
        run, odd = self._modules["run"], self._modules['an "odd" one']
        return odd(run(self.body(run(F.embedding(ids, self._parameters["class"])))))
"""
FROZEN = TIED.replace("\n\n", "\n        self.emb.weight.requires_grad_(False)\n\n", 1)


def compiled(folder: Path, text: str, *, verify: bool = False, **wishes: object) -> Plan:
    (folder / "model.py").write_text(HEAD + text, encoding="utf-8")
    request = Request(strategy="separate", **wishes)  # type: ignore[arg-type]
    options = Options(
        str(folder / "model.py"), out=folder / "out", cluster=Cluster(nodes=3), request=request, verify=verify
    )
    return compile_source(options).plan


def shared(folder: Path) -> list[tuple[str, str, str]]:
    """(name, CONV's name, FC's name) of every SharedParameter that train.py tells."""
    calls = ast.walk(ast.parse((folder / "out" / "train.py").read_text(encoding="utf-8")))
    return [
        tuple(ast.literal_eval(value) for value in (*call.args, *(keyword.value for keyword in call.keywords)))
        for call in calls
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "SharedParameter"
    ]


@pytest.mark.parametrize(
    ("text", "cut_after", "expected"),
    [
        (TIED, "body", [("emb.weight", "emb.weight", "lm.weight")]),
        (CALLED, "body", [(f"shared.{name}",) * 3 for name in ("weight", "bias")]),
        (BARE, "relu", [("mm", "mm", "mm")]),
    ],
    ids=["leaf", "called", "bare"],
)
def test_a_program_with_a_parameter_of_both_roles_is_certified(
    tmp_path: Path, text: str, cut_after: str, expected: list[tuple[str, str, str]]
) -> None:
    plan = compiled(tmp_path, text, verify=True, cut_after=cut_after)
    assert [role for role, _ in plan.sequence] == ["conv", "fc"]
    assert plan.certificate is not None
    assert plan.certificate.passed
    assert shared(tmp_path) == expected
    assert any("is held by both roles" in note for note in plan.notes)
    emitted = assert_is_the_model(tmp_path)
    assert plan.totals.parameter_bytes == sum(parameter.nbytes for parameter in emitted.parameters())


@pytest.mark.parametrize(
    ("text", "fc_ops", "roles", "expected"),
    [
        (TIED, ("emb",), ["fc", "conv"], [("emb.weight", "lm.weight", "emb.weight")]),
        (CALLED, ("emb", "shared", "lm"), ["fc", "conv", "fc"], [("shared.weight",) * 3, ("shared.bias",) * 3]),
        (READ, ("linear",), ["conv", "fc"], [("emb.weight",) * 3]),
        (READ, ("emb",), ["fc", "conv"], [("emb.weight",) * 3]),
        (FIRST_NAME_UNUSED, ("lm",), ["conv", "fc"], [("w", "emb.weight", "lm.weight")]),
        (ALIASED, ("body#2", "lm"), ["conv", "fc"], [(f"body.{name}",) * 3 for name in ("weight", "bias")]),
        (
            DEEP,
            ("emb", "linear", "body", "add", "lm"),
            ["fc", "conv", "fc"],
            [(f"blocks.{name}",) * 3 for name in ("0.self_attn.out_proj.weight", "1.bias")],
        ),
        (
            RECURRENT,
            ("emb", "body", "getitem", "matmul"),
            ["fc", "conv"],
            [("rnn.weight_hh_l0",) * 3],
        ),
        (
            ODDLY_NAMED,
            ("run#2", 'an "odd" one'),
            ["conv", "fc"],
            [("class", "class", 'an "odd" one.weight'), ("run.weight",) * 3, ("run.bias",) * 3],
        ),
        (FROZEN, ("lm",), ["conv", "fc"], [("emb.weight", "emb.weight", "lm.weight")]),
    ],
    ids=[
        "front",
        "both-ends",
        "read",
        "read-in-front",
        "first-name-unused",
        "aliased",
        "deep",
        "recurrent",
        "odd",
        "frozen",
    ],
)
def test_a_program_with_a_parameter_of_both_roles_is_the_model(
    tmp_path: Path, text: str, fc_ops: tuple[str, ...], roles: list[str], expected: list[tuple[str, str, str]]
) -> None:
    plan = compiled(tmp_path, text, fc_ops=fc_ops, placement="colocated", conv_workers=3, fc_workers=1)
    assert [role for role, _ in plan.sequence] == roles
    assert shared(tmp_path) == expected
    assert_is_the_model(tmp_path)


def test_both_options_that_force_a_cut_part_a_tie(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text(HEAD + TIED, encoding="utf-8")
    command = [str(tmp_path / "model.py"), "-o", str(tmp_path / "out"), "--force", "--json", "--no-verify"]
    assert main([*command, "--nodes", "3", "--strategy", "separate", "--cut-after", "body"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [stage["segments"] for stage in plan["stages"]] == [[["emb", "body"]], [["lm"]]]
    # What a user does to the file: an op goes from one list to the other.
    for stage in plan["stages"]:
        stage["segments"] = [["emb"]] if stage["role"] == "conv" else [["body", "lm"]]
    (tmp_path / "edited.json").write_text(json.dumps(plan), encoding="utf-8")
    assert main([*command, "--plan", str(tmp_path / "edited.json")]) == 0
    again = json.loads(capsys.readouterr().out)
    assert [stage["segments"] for stage in again["stages"]] == [[["emb"]], [["body", "lm"]]]
    assert shared(tmp_path) == [("emb.weight", "emb.weight", "lm.weight")]
    assert_is_the_model(tmp_path)


def test_a_buffer_that_both_roles_write_is_still_refused(tmp_path: Path) -> None:
    text = """
        self.norm = nn.BatchNorm1d(7)

    def forward(self, ids):
        return self.lm(self.norm(self.body(self.norm(self.emb(ids)))))
"""
    with pytest.raises(Exception, match="must share a segment"):
        compiled(tmp_path, text, cut_after="body", fc_ops=("norm#2", "lm"))
