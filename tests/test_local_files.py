"""Which files and packages a model file needs."""

from pathlib import Path

from stanza_compiler.local_files import local_files, third_party


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root / "model.py"


def needed(root: Path, files: dict[str, str]) -> list[str]:
    return list(local_files([written(root, files)], root))


def test_siblings_are_followed_however_deep_also_in_circles(tmp_path: Path) -> None:
    files = {
        "model.py": "import torch, first\n",
        "first.py": "from second import thing\n",
        "second.py": "def thing():\n    import model, first\n",
        "unrelated.py": "",
    }
    assert needed(tmp_path, files) == ["first.py", "model.py", "second.py"]


def test_a_package_comes_with_every_init_above_what_is_imported(tmp_path: Path) -> None:
    files = {
        "model.py": "import pack.sub.leaf as leaf\n",
        "pack/__init__.py": "",
        "pack/sub/__init__.py": "",
        "pack/sub/leaf.py": "",
        "pack/sub/other.py": "",
    }
    assert needed(tmp_path, files) == ["model.py", "pack/__init__.py", "pack/sub/__init__.py", "pack/sub/leaf.py"]


def test_relative_imports_are_resolved_from_their_own_package(tmp_path: Path) -> None:
    files = {
        "model.py": "from pack import inner\n",
        "pack/__init__.py": "",
        "pack/inner.py": "from . import near\nfrom .sub import far\n",
        "pack/near.py": "",
        "pack/sub/__init__.py": "",
        "pack/sub/far.py": "from ..up import name\nfrom ... import absent\n",
        "pack/up.py": "name = 1\n",
        "near.py": "",
    }
    assert needed(tmp_path, files) == [
        "model.py",
        "pack/__init__.py",
        "pack/inner.py",
        "pack/near.py",
        "pack/sub/__init__.py",
        "pack/sub/far.py",
        "pack/up.py",
    ]


def test_a_folder_without_an_init_is_local(tmp_path: Path) -> None:
    files = {"model.py": "import plain.inner\nimport numpy\n", "plain/inner.py": "import scipy.stats\n"}
    model = written(tmp_path, files)
    found = local_files([model], tmp_path)
    assert list(found) == ["model.py", "plain/inner.py"]
    assert third_party(found, tmp_path) == ("numpy", "scipy")


def test_third_party_packages_are_named_once_without_python_itself_and_without_siblings(tmp_path: Path) -> None:
    text = "import math, os.path, torch.nn, sibling\nfrom torchvision import models\nfrom . import sibling\n"
    found = local_files([written(tmp_path, {"model.py": text, "sibling.py": "import torch\n"})], tmp_path)
    assert third_party(found, tmp_path) == ("torch", "torchvision")


def test_a_file_may_name_its_own_encoding(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_bytes(b"# -*- coding: latin-1 -*-\nimport torch  # \xe9\n")
    found = local_files([tmp_path / "model.py"], tmp_path)
    assert third_party(found, tmp_path) == ("torch",)
