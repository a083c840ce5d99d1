"""SOURCE in all its forms, and what is said when it holds no model."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch
from torch import nn

from stanza_compiler.errors import LoadError, StanzaError, UsageError
from stanza_compiler.loader import Source, load
from stanza_compiler.options import InputSpec, Options

MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(x)


instance = Net()
not_a_model = 7


def build_model():
    return Net()


def example_inputs():
    return (torch.ones(4, 3),)
"""


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Whatever happens, sys.path is as before, and no module of a test's folder stays."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    assert sys.path == path
    left = {name for name in set(sys.modules) - modules if "pytest-of" in str(sys.modules[name])}
    assert not left


def written(folder: Path, model: str = MODEL, **files: str) -> str:
    """A model.py and Python files by name, `_in_` standing for a slash; the path of model.py."""
    for name, text in {"model": model, **files}.items():
        path = folder / f"{name.replace('_in_', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return str(folder / "model.py")


def loaded(source: str, *inputs: InputSpec) -> Source:
    with load(Options(source, inputs=inputs)) as found:
        return found


def failure(source: str, *inputs: InputSpec) -> str:
    with pytest.raises(StanzaError) as caught, load(Options(source, inputs=inputs)):
        pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("attribute", ["", ":build_model", ":Net", ":instance"])
def test_a_file_gives_its_factory_a_class_or_an_instance(tmp_path: Path, attribute: str) -> None:
    source = loaded(written(tmp_path, MODEL) + attribute)
    assert (source.name, source.place, source.basename, source.origin) == (
        "model",
        "model.py",
        "model.py",
        "user_model",
    )
    assert type(source.module).__name__ == "Net"
    assert (source.file, source.root) == (tmp_path / "model.py", tmp_path)
    assert [leaf.name for leaf in source.call.leaves] == ["x"]


def test_an_instance_is_the_very_one_that_the_file_made(tmp_path: Path) -> None:
    with load(Options(written(tmp_path, MODEL) + ":instance")) as source:
        assert source.module is sys.modules["user_model"].instance


def test_a_module_of_the_working_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(
        tmp_path, nets_in___init__="", nets_in_small="from .parts import WIDTH\n" + MODEL, nets_in_parts="WIDTH = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    source = loaded("nets.small:Net")
    assert (source.name, source.place, source.origin) == ("small", "nets.small", "nets.small")
    assert source.file == tmp_path / "nets" / "small.py"


def test_an_installed_factory_is_called_on_drawn_inputs() -> None:
    source = loaded("torchvision.models:resnet18", InputSpec((2, 3, 32, 32)))
    assert sum(parameter.numel() for parameter in source.module.parameters()) == 11_689_512
    (leaf,) = source.call.leaves
    assert leaf.example.shape == (2, 3, 32, 32)
    assert "torchvision.models" in sys.modules


def test_inputs_are_drawn_the_same_each_time_and_integers_within_their_range(tmp_path: Path) -> None:
    model = written(tmp_path, model=MODEL.replace("def forward(self, x)", "def forward(self, x, *more)"))
    specs = InputSpec((2, 3)), InputSpec((500,), "int64", 3, 7), InputSpec((500,), "int32"), InputSpec((2,), "bool")
    first, second = ([leaf.example for leaf in loaded(model, *specs).call.leaves] for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert set(first[1].tolist()) == {3, 4, 5, 6}
    assert set(first[2].tolist()) == {0, 1}
    assert [example.dtype for example in first] == [torch.float32, torch.int64, torch.int32, torch.bool]


def test_siblings_and_packages_beside_the_file_can_be_imported_as_long_as_the_context_lasts(tmp_path: Path) -> None:
    text = MODEL.replace("import torch\n", "import torch\nimport sibling\nfrom pack.inner import late\n", 1)
    inner = "def late():\n    import much_later\n    return much_later.VALUE\n"
    model = written(
        tmp_path, text, sibling="", pack_in___init__="", pack_in_inner="from . import other\n" + inner,
        pack_in_other="", much_later="VALUE = 5\n",
    )  # fmt: skip
    with load(Options(model)):
        assert sys.modules["user_model"].late() == 5
        assert {"sibling", "pack.inner", "much_later"} <= set(sys.modules)
    assert not {"user_model", "sibling", "pack", "pack.inner", "pack.other", "much_later"} & set(sys.modules)


def test_two_folders_with_a_sibling_of_the_same_name_do_not_mix(tmp_path: Path) -> None:
    text = MODEL.replace("import torch\n", "import torch\nfrom size import WIDTH\n", 1).replace("(3, 2)", "(3, WIDTH)")
    for width in (5, 6):
        model = written(tmp_path / str(width), text, size=f"WIDTH = {width}\n")
        fc = loaded(model).module.get_submodule("fc")
        assert isinstance(fc, nn.Linear)
        assert fc.out_features == width


def test_torch_random_and_numpy_are_seeded_before_the_model_is_built(tmp_path: Path) -> None:
    text = """
        import random
        import numpy, torch
        from torch import nn

        numpy.random.rand(3)

        def build_model():
            model = nn.Linear(2, 2)
            model.drawn = (random.random(), numpy.random.rand(), torch.rand(1).item())
            return model

        def example_inputs():
            return (torch.ones(2, 2),)
        """
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    nn.Linear(2, 2)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    random.random()
    assert loaded(written(tmp_path, text)).module.drawn == expected


def test_the_users_own_functions_are_found(tmp_path: Path) -> None:
    text = """
        def example_targets():
            return torch.tensor([1, 0, 1, 0])

        def batch_axes():
            return {"x": 1}

        def loss_fn(outputs, targets):
            return outputs.sum()

        def make_optimizer(params):
            return torch.optim.SGD(params, lr=0.5)
        """
    source = loaded(written(tmp_path, model=MODEL + dedent(text)))
    assert source.targets.tolist() == [1, 0, 1, 0]
    assert source.call.leaves[0].batch_axis == 1
    assert source.hooks.loss_fn is not None
    assert source.hooks.make_optimizer is not None
    assert source.hooks.make_scheduler is None


def test_keyword_inputs_alone_make_a_call(tmp_path: Path) -> None:
    text = MODEL.replace("def example_inputs():\n    return (torch.ones(4, 3),)", "") + dedent("""
        def example_kwargs():
            return {"x": torch.ones(2, 3)}
        """)
    (leaf,) = loaded(written(tmp_path, text)).call.leaves
    assert (leaf.name, leaf.example.shape) == ("x", (2, 3))


def test_the_batch_axis_of_the_command_line_wins_over_that_of_the_file(tmp_path: Path) -> None:
    model = written(tmp_path, model=MODEL + "\ndef batch_axes():\n    return {'x': 1}\n")
    with load(Options(model, batch_axes=(("x", 0),))) as source:
        assert source.call.leaves[0].batch_axis == 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("absent.py", "absent.py: no such file; pass model.py, model.py:attr or package.module:attr"),
        ("absent.py:Net", "absent.py: no such file; pass model.py, model.py:attr or package.module:attr"),
        ("absent_package.nets:Net", "absent_package.nets:Net: no module absent_package.nets can be imported; "
         "install it or run from its folder"),
        ("torchvision.absent:Net", "torchvision.absent:Net: no module torchvision.absent can be imported; "
         "install it or run from its folder"),
        ("torch.nn.functional.relu:Net", "torch.nn.functional.relu:Net: no module torch.nn.functional.relu can be "
         "imported; install it or run from its folder"),
        ("torchvision.models", "torchvision.models: a module needs the name of the model in it; "
         "pass torchvision.models:attr"),
        ("model.py:not-a-name", "model.py: 'not-a-name' is no attribute name; "
         "pass model.py:attr or package.module:attr"),
        ("model.py:", "model.py: '' is no attribute name; pass model.py:attr or package.module:attr"),
        ("", "SOURCE: neither a Python file nor a module; pass model.py, model.py:attr or package.module:attr"),
        ("net.onnx", "net.onnx: no such file; pass the path of an ONNX model"),
        ("net.onnx:Net", "net.onnx:Net: an ONNX file holds one model; pass net.onnx"),
        ("model.txt:Net", "model.txt:Net: no module model.txt can be imported; install it or run from its folder"),
        ("notes", "notes: not a Python file; pass a file whose name ends in .py"),
        ("folder.py", "folder.py: no such file; pass model.py, model.py:attr or package.module:attr"),
    ],
)  # fmt: skip
def test_a_source_that_names_nothing_is_a_usage_error(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, MODEL)
    (tmp_path / "notes").write_text("no model")
    (tmp_path / "folder.py").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught, load(Options(source)):
        pass
    assert str(caught.value) == message


REMEDY = "fix it so that the model runs by itself"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "model.py: no build_model in it; define build_model()"),
        ("", "model.py: no build_model in it; define build_model()"),
        (MODEL.replace("build_model", "make"), "model.py: no build_model in it; define build_model() or pass "
         "model.py:Net"),
        ("import torch\n\ndef f(:\n", "model.py:3: syntax error: invalid syntax; fix the file"),
        ("if True:\nx = 1\n", "model.py:2: syntax error: expected an indented block after 'if' statement on line 1; "
         "fix the file"),
        ("x = 1\n\nraise KeyError('lost')\n", f"model.py:3: importing the file raised KeyError: 'lost'; {REMEDY}"),
        ("\nimport absent_package\n", "model.py:2: importing the file raised ModuleNotFoundError: No module named "
         f"'absent_package'; {REMEDY}"),
        ("import sys\nsys.exit(3)\n", f"model.py:2: importing the file raised SystemExit: 3; {REMEDY}"),
        ("raise ValueError\n", f"model.py:1: importing the file raised ValueError: ValueError(); {REMEDY}"),
        ("raise ValueError('one\\ntwo')\n", f"model.py:1: importing the file raised ValueError: one; {REMEDY}"),
        ("def build_model():\n    return 7\n", "model.py: build_model() returned a int, no module; "
         "return a torch.nn.Module"),
        ("def build_model(width):\n    return width\n", "model.py: build_model() raised TypeError: build_model() "
         f"missing 1 required positional argument: 'width'; {REMEDY}"),
        ("build_model = 7\n", "model.py: build_model is a int, no module; name a class, instance or factory"),
        (MODEL.replace("return Net()", "return nn.DataParallel(Net())"), "model.py: the model is wrapped in "
         "DataParallel; return the module inside it"),
        (MODEL.replace("nn.Linear(3, 2)", "nn.Linear(3, 2); self.late = nn.LazyLinear(2)"), "model.py: late.weight has "
         "no shape yet, the example call does not reach it; leave the module out"),
        (MODEL.replace("def example_inputs", "def other"), "model.py: no example_inputs() in it; define it or pass "
         "--input 32x3x224x224:float32"),
        (MODEL.replace("(torch.ones(4, 3),)", "torch.ones(4, 3)"), "model.py: example_inputs() returned a Tensor; "
         "return a tuple of inputs"),
        (MODEL.replace("(torch.ones(4, 3),)", "()"), "model.py: the example inputs don't fit forward(x): missing a "
         "required argument: 'x'; fix example_inputs()"),
        (MODEL.replace("(torch.ones(4, 3),)", "(1,)"), "model.py: the example inputs hold no tensor; "
         "return a tuple of tensors from example_inputs()"),
        (MODEL.replace("torch.ones(4, 3)", "torch.ones(4, -3)"), "model.py:23: example_inputs() raised RuntimeError: "
         f"Trying to create tensor with negative dimension -3: [4, -3]; {REMEDY}"),
        (MODEL + "\ndef example_kwargs():\n    return 3\n", "model.py: example_kwargs() returned a int; return a dict"),
        (MODEL + "\ndef batch_axes():\n    return 3\n", "model.py: batch_axes() returned a int; "
         "return a dict of input name to axis"),
        (MODEL + "\ndef batch_axes():\n    return {'y': 0}\n", "model.py: no input is called y; the inputs are x"),
        (MODEL + "\ndef batch_axes():\n    return {'x': 'first'}\n", "model.py: the batch axis of x is 'first'; "
         "give its number or None"),
        (MODEL.replace("    return Net()", "    torch.set_default_dtype(torch.float64)\n    return Net()"),
         "model.py: it makes torch.float64 torch's default dtype, which the program would not; leave the default as it "
         "is: .double() or dtype= makes a model of another one"),
    ],
)  # fmt: skip
def test_a_file_without_a_usable_model_is_told_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    assert failure(written(tmp_path, text)) == message
    assert torch.get_default_dtype() == torch.float32


def test_an_unknown_attribute_is_told_with_what_there_is(tmp_path: Path) -> None:
    message = failure(written(tmp_path, MODEL) + ":Nett")
    assert message == "model.py: no Nett in it; pass model.py:Net"
    assert failure(written(tmp_path, MODEL) + ":not_a_model").startswith("model.py: not_a_model is a int, no")
    assert failure("torchvision.models:resnet19", InputSpec((2, 3, 32, 32))).startswith(
        "torchvision.models: no resnet19 in it"
    )


def test_an_error_deep_in_a_helper_is_told_at_the_helpers_own_line(tmp_path: Path) -> None:
    text = MODEL.replace("import torch\n", "import torch\nfrom pack import deep\n", 1)
    text = text.replace("    return Net()", "    return deep.make()")
    deep = "from torch import nn\n\ndef make():\n    return other()\n\ndef other():\n    return nn.Linear('a', 2)\n"
    message = failure(written(tmp_path, text, pack_in___init__="", pack_in_deep=deep))
    assert message.startswith("pack/deep.py:7: build_model() raised ")


def test_a_syntax_error_in_a_sibling_names_the_sibling(tmp_path: Path) -> None:
    message = failure(written(tmp_path, model="import sibling\n", sibling="x = (\n"))
    assert message == "sibling.py:1: syntax error: '(' was never closed; fix the file"


def test_a_package_that_raises_is_a_load_error_at_its_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, broken_in___init__="\nraise RuntimeError('no licence')\n", broken_in_net=MODEL)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoadError) as caught, load(Options("broken.net:Net")):
        pass
    assert str(caught.value).startswith("broken/__init__.py:2: ")
    assert "no licence" in str(caught.value)


def test_an_error_raised_while_the_context_lasts_passes_through(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), load(Options(written(tmp_path, MODEL))):
        raise ZeroDivisionError


def test_a_path_that_user_code_adds_to_sys_path_is_gone_afterwards(tmp_path: Path) -> None:
    before = list(sys.path)
    for meddling in ("sys.path.insert(0, '/nowhere')", "sys.path = list(sys.path)[1:]"):
        loaded(written(tmp_path, model=f"import sys\n{meddling}\n{MODEL}"))
        assert sys.path == before


def test_a_folder_without_an_init_is_forgotten_too(tmp_path: Path) -> None:
    text = MODEL.replace("import torch\n", "import torch\nimport plain.inner\n", 1)
    loaded(written(tmp_path, text, plain_in_inner=""))
    assert "plain" not in sys.modules


def test_a_relative_import_at_the_top_of_a_lone_file_fails_at_its_line_as_in_python(tmp_path: Path) -> None:
    assert failure(written(tmp_path, "from . import sibling\n", sibling="")).startswith(
        "model.py:1: importing the file raised ImportError: attempted relative import"
    )


def test_a_package_that_lacks_a_dependency_names_the_dependency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, broken_in___init__="import absent_package\n", broken_in_net=MODEL)
    monkeypatch.chdir(tmp_path)
    assert failure("broken.net:Net").startswith(
        "broken/__init__.py:1: importing the module raised ModuleNotFoundError: No module named 'absent_package'"
    )


@pytest.mark.parametrize("content", [b"x = 1\0\n", b"x = '\xff'\n"])
def test_a_file_that_is_no_python_text_is_a_syntax_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_bytes(content)
    message = failure(str(tmp_path / "model.py"))
    assert message.startswith("model.py")
    assert "None" not in message


def test_code_that_a_factory_compiles_itself_is_told_at_the_factorys_line(tmp_path: Path) -> None:
    message = failure(written(tmp_path, "def build_model():\n    return eval('1 +')\n"))
    assert message.startswith("model.py:2: build_model() raised SyntaxError: invalid syntax")


def test_lazy_modules_take_their_shapes_from_the_example_under_the_fixed_seed(tmp_path: Path) -> None:
    text = MODEL.replace("nn.Linear(3, 2)", "nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.LazyLinear(2))")
    first, second = (loaded(written(tmp_path, text)) for _ in range(2))
    assert {name: tuple(value.shape) for name, value in first.module.named_parameters()} == {
        "fc.0.weight": (5, 3), "fc.0.bias": (5,), "fc.1.weight": (5,), "fc.1.bias": (5,),
        "fc.2.weight": (2, 5), "fc.2.bias": (2,),
    }  # fmt: skip
    torch.manual_seed(0)
    assert torch.equal(first.module.get_parameter("fc.0.weight"), nn.Linear(3, 5).weight)
    for one, other in zip(first.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(one, other)
    assert first.notes == ("lazy modules took shapes and first weights from one call on the example inputs, seed 0",)


def test_a_batch_on_another_axis_is_found_and_told(tmp_path: Path) -> None:
    text = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lstm = nn.LSTM(5, 6, num_layers=2, bidirectional=True, batch_first=True)
                self.scale = torch.ones(12, requires_grad=True)

            def forward(self, x, state):
                return self.lstm(x, state)[0] * self.scale

        def build_model():
            return Net()

        def example_inputs():
            return (torch.ones(3, 7, 5), (torch.ones(4, 3, 6), torch.ones(4, 3, 6)))
        """
    source = loaded(written(tmp_path, text))
    assert [leaf.batch_axis for leaf in source.call.leaves] == [0, 1, 1]
    untrained, axes = source.notes
    assert untrained == "scale requires a gradient but is no parameter: nothing trains it"
    assert axes.startswith("batch axes x=0, state_0=1, state_1=1: ")
    own = loaded(written(tmp_path, dedent(text) + "\ndef batch_axes():\n    return {'state_0': 1, 'state_1': 1}\n"))
    assert [leaf.batch_axis for leaf in own.call.leaves] == [0, 1, 1]
    assert own.notes == (untrained,)


META = MODEL.replace("return Net()", 'with torch.device("meta"):\n        return Net()')


def test_a_model_without_memory_takes_inputs_without_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(META)
    with load(Options(str(path), verify=False, dry_run=True)) as source:
        assert [(leaf.example.device.type, leaf.example.shape) for leaf in source.call.leaves] == [("meta", (4, 3))]
        assert source.call.batch_size == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "build it on cpu, or pass --no-verify --dry-run"),
        ({"verify": False}, "build it on cpu, or pass --no-verify --dry-run"),
        ({"dry_run": True}, "build it on cpu, or pass --no-verify --dry-run"),
        ({"verify": False, "dry_run": True, "measure": True}, "pass a --device other than measure"),
    ],
)
def test_a_model_without_memory_is_neither_run_nor_written(
    changes: dict[str, bool], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.py"
    path.write_text(META)
    with pytest.raises(LoadError, match=message) as caught, load(Options(str(path), **changes)):  # type: ignore[arg-type]
        pass
    assert str(caught.value).startswith("model.py: fc.weight is on the meta device, a shape without values")


BAGS = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(50, 4, mode="sum")

        def forward(self, x, ids, offsets):
            return x + self.bag(ids, offsets)

    def build_model():
        return Net()

    def example_inputs():
        return torch.ones(3, 4), torch.tensor([7, 8, 9]), torch.tensor([0, 1, 2])
    """


def test_contents_of_bags_have_no_batch_axis_unless_the_user_says_so(tmp_path: Path) -> None:
    source = loaded(written(tmp_path, BAGS))
    assert [leaf.batch_axis for leaf in source.call.leaves] == [0, None, 0]
    assert source.notes == (
        "synthetic items can't fill the embedding bags of ids: define make_dataset() and collate_fn()",
    )
    own = "\ndef batch_axes():\n    return {'ids': 0}\n\ndef make_dataset():\n    return []\n"
    source = loaded(written(tmp_path, dedent(BAGS) + own))
    assert [leaf.batch_axis for leaf in source.call.leaves] == [0, 0, 0]
    assert source.notes == ()
