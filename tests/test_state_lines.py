"""Programs whose module trees are hard to build again, each held against its model."""

from pathlib import Path

import pytest

from tests.against_model import assert_is_the_model, compiled, refused

MODELS = {
    "one module under two names": """
        self.first, self.fc, self.out = nn.Linear(6, 8), nn.Linear(8, 300), nn.Linear(300, 3)
        self.again = self.first
        ---
        return self.out(self.fc(self.first(x) + self.again(x)))""",
    "modules listed again before and after": """
        self.before = nn.ModuleList()
        self.first, self.fc, self.out = nn.Linear(6, 8), nn.Linear(8, 300), nn.Linear(300, 3)
        self.before.extend([self.out, self.first])
        self.after = nn.Module()
        self.after.inner = nn.Module()
        self.after.inner.fc = self.fc
        ---
        return self.before[0](self.after.inner.fc(self.first(x)))""",
    "parameters tied within containers alone": """
        self.first, self.fc, self.out = nn.Linear(6, 8), nn.Linear(8, 300), nn.Linear(300, 3)
        self.list = nn.ParameterList([self.first.bias, self.first.bias])
        self.dict = nn.ParameterDict({"a b": self.list[0], "c": nn.ParameterDict({"class": torch.ones(8)})})
        ---
        h = self.first(x) * self.list[0] + self.list[1] * self.dict["a b"]
        return self.out(self.fc(h + self.dict["c"]["class"]))""",
    "plain values among the parameters of a list": """
        self.first, self.fc, self.out = nn.Linear(6, 8), nn.Linear(8, 300), nn.Linear(300, 3)
        self.list = nn.ParameterList([nn.Parameter(torch.ones(8)), torch.ones(8), 3])
        ---
        return self.out(self.fc(self.first(x) * self.list[0] * self.list[1] * self.list[2]))""",
    "one buffer under several names, written under one": """
        self.first, self.fc, self.out = nn.Linear(6, 8), nn.Linear(8, 300), nn.Linear(300, 3)
        self.register_buffer("a", torch.ones(8))
        self.register_buffer("b", self.a)
        self.inner = nn.Module()
        self.inner.register_buffer("c d", self.a, persistent=False)
        ---
        self.a.add_(1.0)
        return self.out(self.fc(self.first(x) * self.b + getattr(self.inner, "c d")))""",
    "a parameter that is a buffer too": """
        self.first, self.fc, self.out = nn.Linear(6, 8), nn.Linear(8, 300), nn.Linear(300, 3)
        self.inner = nn.Module()
        self.inner.register_buffer("held", self.first.bias)
        ---
        return self.out(self.fc(self.first(x) + self.inner.held))""",
    "one running mean of two layers": """
        self.first, self.fc, self.out = nn.Linear(6, 8), nn.Linear(8, 300), nn.Linear(300, 3)
        self.one, self.two = nn.BatchNorm1d(8), nn.BatchNorm1d(8)
        self.two.running_mean = self.one.running_mean
        ---
        return self.out(self.fc(self.two(self.one(self.first(x)))))""",
    "weights of an LSTM tied within it": """
        self.lstm = nn.LSTM(6, 6, batch_first=True)
        self.lstm.weight_hh_l0 = self.lstm.weight_ih_l0
        self.fc, self.out = nn.Linear(6, 300), nn.Linear(300, 3)
        ---
        return self.out(self.fc(self.lstm(x[:, None])[0][:, 0]))""",
    "a parametrization of the user's beside one of torch's": """
        self.first, self.fc, self.out = nn.Linear(6, 8), nn.Linear(8, 300), nn.Linear(300, 3)
        nn.utils.parametrizations.weight_norm(self.fc)
        nn.utils.parametrize.register_parametrization(self.fc, "bias", Doubled())
        nn.utils.parametrizations.spectral_norm(self.out)
        ---
        return self.out(self.fc(self.first(x)))""",
    "hooks and a forward on the instance": """
        self.first, self.fc, self.out = nn.Linear(6, 8), nn.Linear(8, 300), nn.Linear(300, 3)
        self.act = nn.Tanh()
        self.act.forward = torch.relu
        self.first.register_forward_hook(lambda module, args, output: output * 2)
        self.fc.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
        ---
        return self.out(self.fc(self.act(self.first(x))))""",
    "layers that the model's own train() treats in its own way": """
        self.first, self.fc, self.out = nn.Linear(6, 8), nn.Linear(8, 300), nn.Linear(300, 3)
        self.held = nn.ModuleList([nn.BatchNorm1d(8), nn.BatchNorm1d(3)])
        self.drop = nn.Dropout(0.5)
        ---
        return self.held[1](self.out(self.fc(self.drop(self.held[0](self.first(x))))))

    def train(self, mode=True):
        super().train(mode)
        self.held.eval()
        self.drop.train()
        return self""",
    "children out of order, bare tensors between them": """
        self.out = nn.Linear(300, 3)
        self.late = nn.Parameter(torch.ones(3))
        self.first = nn.Linear(6, 8)
        self.register_buffer("z", torch.ones(8))
        self.early = nn.Parameter(torch.ones(8), requires_grad=False)
        self.fc = nn.Linear(8, 300)
        self.register_buffer("y", torch.ones(3))
        ---
        return self.out(self.fc(self.first(x) * self.z * self.early)) * self.late * self.y""",
    "several dtypes, no elements, no dimensions": """
        self.first, self.fc = nn.Linear(6, 8), nn.Linear(8, 300).to(torch.bfloat16)
        self.out = nn.Linear(300, 3, dtype=torch.float64)
        self.none = nn.Parameter(torch.empty(0, 8))
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.pick = nn.Parameter(torch.arange(8), requires_grad=False)
        self.register_buffer("mask", torch.tensor([True, False] * 4))
        self.register_buffer("nothing", None)
        ---
        h = (self.first(x) * self.scale + self.none.sum(0))[:, self.pick] * self.mask
        return self.out(self.fc(h.bfloat16()).double())""",
    "a container of the user's that knows other versions of its state": """
        self.first, self.fc, self.out = nn.Linear(6, 8), nn.Linear(8, 300), nn.Linear(300, 3)
        self.list = nn.Sequential(Versioned(), Versioned())
        ---
        return self.out(self.fc(self.list(self.first(x))))""",
}  # fmt: skip

OWN = """
    class Doubled(nn.Module):
        def forward(self, w):
            return w * 2

    class Versioned(nn.Module):
        _version = 7

        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            return self.fc(x)

        def _load_from_state_dict(self, state_dict, prefix, local_metadata, *rest):
            assert local_metadata["version"] == 7
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
    """


def model(text: str) -> str:
    init, forward = text.split("        ---\n")
    lines = [*init.split("\n"), "", "    def forward(self, x):", forward]
    head = ["", "class Net(nn.Module):", "    def __init__(self):", "        super().__init__()"]
    return OWN.replace("\n    ", "\n") + "\n".join([*head, *lines]) + "\n"


@pytest.mark.parametrize("name", MODELS)
def test_the_program_is_the_model(name: str, tmp_path: Path) -> None:
    compiled(tmp_path, model(MODELS[name]))
    assert_is_the_model(tmp_path)


def test_a_tensor_computed_from_parameters_behind_the_traces_back_is_refused_at_its_line(tmp_path: Path) -> None:
    text = """
        self.first, self.fc = nn.Linear(6, 8), nn.Linear(8, 300)
        self.scale = nn.Parameter(torch.ones(300))
        ---
        return self.fc(self.first(x)) * (self._parameters["scale"] * 2)"""
    message = refused(tmp_path, model(text))
    lines = (tmp_path / "model.py").read_text().splitlines()
    line = 1 + next(index for index, code in enumerate(lines) if 'self._parameters["scale"]' in code)
    assert message.startswith(f"model.py:{line}: a tensor was computed from parameters where the trace does not see it")


def test_weights_without_values_are_refused_by_name(tmp_path: Path) -> None:
    text = """
        self.first, self.fc, self.unused = nn.Linear(6, 8), nn.Linear(8, 300), nn.Linear(3, 3, device="meta")
        ---
        return self.fc(self.first(x))"""
    assert refused(tmp_path, model(text)).startswith("model.py: unused.weight is on the meta device, a shape without")
