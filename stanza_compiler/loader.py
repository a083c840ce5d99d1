"""From SOURCE to a module, an example call of it and the user's own functions."""

import contextlib
import copy
import importlib
import importlib.util
import inspect
import itertools
import random
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from stanza_compiler.bag_contents import bag_contents
from stanza_compiler.batch_axes import settle_batch_axes
from stanza_compiler.call import Call, describe_call, drawn
from stanza_compiler.errors import LoadError, StanzaError, UsageError
from stanza_compiler.options import InputSpec, Options
from stanza_compiler.runtime.program import Hooks
from stanza_compiler.sources import short_path
from stanza_compiler.text import printable
from stanza_compiler.uncarried import refuse_uncarried, untrained_notes

USER_MODULE = "user_model"
RUN_IT = "fix it so that the model runs by itself"


@dataclass(frozen=True, slots=True)
class Source:
    """What the user gave: `name` is the file's stem, `place` how errors call it.

    `hooks` are the user's own functions, `notes` what was done to the model. `origin` is the module they come from:
    `user_model` for a file, else its import name. `file` is that module's file, `root` the folder that
    stands on sys.path meanwhile. `recipe` is the expression that makes the model with the names of `origin`.
    """

    name: str
    place: str
    basename: str
    module: nn.Module
    call: Call
    targets: Any
    hooks: Hooks
    origin: str
    file: Path
    root: Path
    notes: tuple[str, ...] = ()
    recipe: str = ""


@contextlib.contextmanager
def load(options: Options) -> Iterator[Source]:
    """The Source of `options`; the user's folder is importable until the context ends.

    User code runs in this process. torch, random and numpy are seeded with 0 before the model is built. Raises
    UsageError for a SOURCE that names nothing, LoadError with the user's own file and line for what user code raises.
    """
    path_text, attribute = _split_source(options.source)
    if path_text.endswith(".onnx"):
        yield _onnx_source(Path(path_text), options)
        return
    is_file = path_text.endswith(".py")
    path = Path(path_text)
    if is_file and not path.is_file():
        raise UsageError(path_text, "no such file", "pass model.py, model.py:attr or package.module:attr")
    root = path.resolve().parent if is_file else Path.cwd()
    modules_before, path_before = set(sys.modules), list(sys.path)
    dtype_before = torch.get_default_dtype()
    sys.path.insert(0, str(root))
    place = path.name if is_file else path_text
    try:
        user = _import_file(path.resolve(), root, path.name) if is_file else _import_module(path_text, attribute, root)
        source = _source(user, attribute, options, root, place)
        if torch.get_default_dtype() != dtype_before:
            what = f"it makes {torch.get_default_dtype()} torch's default dtype, which the program would not"
            raise LoadError(place, what, "leave the default as it is: .double() or dtype= makes a model of another one")
        yield source
    finally:
        torch.set_default_dtype(dtype_before)
        sys.path[:] = path_before
        for name in _local_modules(root, modules_before):
            del sys.modules[name]


def _split_source(source: str) -> tuple[str, str | None]:
    head, separator, attribute = source.rpartition(":")
    if not separator:
        head, attribute = source, ""
    if separator and not attribute.isidentifier():
        raise UsageError(head, f"{attribute!r} is no attribute name", "pass model.py:attr or package.module:attr")
    if head.endswith(".onnx"):
        if attribute:
            raise UsageError(source, "an ONNX file holds one model", f"pass {head}")
        return head, None
    if not head.endswith(".py") and not all(part.isidentifier() for part in head.split(".")):
        raise UsageError(
            source or "SOURCE",
            "neither a Python file nor a module",
            "pass model.py, model.py:attr or package.module:attr",
        )
    if not head.endswith(".py") and not attribute:
        if Path(head).exists():
            raise UsageError(source, "not a Python file", "pass a file whose name ends in .py")
        raise UsageError(source, "a module needs the name of the model in it", f"pass {head}:attr")
    return head, attribute or None


def _import_file(path: Path, root: Path, place: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(USER_MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[USER_MODULE] = module  # dataclasses and pickling look their module up
    _seed()
    with user_code(place, "importing the file", root):
        spec.loader.exec_module(module)
    return module


def _import_module(name: str, attribute: str | None, root: Path) -> ModuleType:
    _seed()
    with user_code(name, "importing the module", root):
        if not _exists(name):
            raise UsageError(
                f"{name}:{attribute}", f"no module {name} can be imported", "install it or run from its folder"
            )
        return importlib.import_module(name)


def _exists(name: str) -> bool:
    """Whether there is such a module; the packages above it are imported to find out."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            return False
        raise  # a package above it is there but lacks something itself


@contextlib.contextmanager
def user_code(place: str, doing: str, root: Path, remedy: str = RUN_IT) -> Iterator[None]:
    """Turn what user code raises into a LoadError at the user's own file and line."""
    try:
        yield
    except StanzaError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_file():
            line = f":{error.lineno}" if error.lineno else ""
            where = f"{short_path(Path(error.filename), root)}{line}"
            raise LoadError(where, f"syntax error: {error.msg}", "fix the file") from error
        _raise_at(error, place, doing, root, remedy)


def _raise_at(error: BaseException, place: str, doing: str, root: Path, remedy: str) -> NoReturn:
    what = f"{doing} raised {type(error).__name__}: {first_line(error)}"
    raise LoadError(user_line(error, root) or place, what, remedy) from error


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "") or repr(error)


def user_line(error: BaseException, root: Path) -> str:
    """`file.py:12`, the innermost frame of `error` in the user's folder; empty when there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        path = Path(frame.filename)
        if path.is_relative_to(root) and not _is_installed(path):
            return f"{path.relative_to(root)}:{frame.lineno}"
    return ""


def _is_installed(path: Path) -> bool:
    return "site-packages" in path.parts or "dist-packages" in path.parts or path.is_relative_to(Path(__file__).parent)


def _seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def _source(user: ModuleType, attribute: str | None, options: Options, root: Path, place: str) -> Source:
    module = _build(user, attribute, root, place)
    args, kwargs = _examples(user, options.inputs, root, place)
    if has_no_values(module):
        _forbid_values(module, options, place)
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
    notes = _initialise_lazy_modules(module, args, kwargs, root, place)
    refuse_uncarried(module, place)
    axes = _batch_axes(user, options, root, place)
    call = describe_call(module, args, kwargs, batch_axes=axes, place=place)
    contents = bag_contents(module, call)
    if not set(contents) <= axes.keys():
        axes = {**dict.fromkeys(contents), **axes}
        call = describe_call(module, args, kwargs, batch_axes=axes, place=place)
    call, note = settle_batch_axes(module, call, axes.keys())
    targets = _optional(user, "example_targets", root, place)
    hooks = Hooks(**{field.name: getattr(user, field.name, None) for field in fields(Hooks)})
    name = Path(user.__file__).stem if user.__name__ == USER_MODULE and user.__file__ else place.rpartition(".")[2]
    return Source(
        name=name,
        place=place,
        basename=printable(Path(place).name),
        module=module,
        call=call,
        targets=targets,
        hooks=hooks,
        origin=user.__name__,
        file=Path(user.__file__ or place).resolve(),
        root=root,
        notes=(*notes, *untrained_notes(module), *([note] if note else []), *_bag_notes(contents, hooks)),
        recipe=_recipe(user, attribute or "build_model"),
    )


def _bag_notes(contents: tuple[str, ...], hooks: Hooks) -> tuple[str, ...]:
    if not contents or hooks.make_dataset is not None:
        return ()
    named = ", ".join(contents)
    return (f"synthetic items can't fill the embedding bags of {named}: define make_dataset() and collate_fn()",)


def _recipe(user: ModuleType, name: str) -> str:
    return name if isinstance(getattr(user, name), nn.Module) else f"{name}()"


def _build(user: ModuleType, attribute: str | None, root: Path, place: str) -> nn.Module:
    wanted = attribute or "build_model"
    if not hasattr(user, wanted):
        modules = [
            name for name, value in vars(user).items() if inspect.isclass(value) and issubclass(value, nn.Module)
        ]
        own = [name for name in modules if getattr(vars(user)[name], "__module__", "") == user.__name__]
        ways = ["define build_model()"] if attribute is None else []
        ways += [f"pass {place}:{get_close_matches(wanted, own, n=1, cutoff=0)[0]}"] if own else []
        raise LoadError(place, f"no {wanted} in it", " or ".join(ways) or "name a class, instance or factory of it")
    thing = getattr(user, wanted)
    if not isinstance(thing, nn.Module):
        if not callable(thing):
            raise LoadError(
                place, f"{wanted} is a {type(thing).__name__}, no module", "name a class, instance or factory"
            )
        _seed()
        with user_code(place, f"{wanted}()", root):
            thing = thing()
    if not isinstance(thing, nn.Module):
        raise LoadError(place, f"{wanted}() returned a {type(thing).__name__}, no module", "return a torch.nn.Module")
    if isinstance(thing, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise LoadError(place, f"the model is wrapped in {type(thing).__name__}", "return the module inside it")
    return thing


def has_no_values(module: nn.Module) -> bool:
    """Whether some of the module's tensors are on the meta device: sizes without memory."""
    return any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))


def _forbid_values(module: nn.Module, options: Options, place: str) -> None:
    """Raise LoadError where a model without values was asked to be run or written."""
    tensors = itertools.chain(module.named_parameters(), module.named_buffers())
    what = f"{next(name for name, tensor in tensors if tensor.is_meta)} is on the meta device, a shape without values"
    if options.verify or not options.dry_run:
        raise LoadError(place, what, "build it on cpu, or pass --no-verify --dry-run")
    if options.measure:
        raise LoadError(place, f"{what}, where no op takes time", "pass a --device other than measure")


def _initialise_lazy_modules(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], root: Path, place: str
) -> tuple[str, ...]:
    """Let modules that wait for their input's shape see the example; a note when there are any."""

    def waiting() -> list[str]:
        named = itertools.chain(module.named_parameters(), module.named_buffers())
        return [name for name, tensor in named if nn.parameter.is_lazy(tensor)]

    if not waiting():
        return ()
    _seed()
    with user_code(place, "the call that gives lazy modules their shapes", root), torch.no_grad():
        args, kwargs = copy.deepcopy((args, kwargs))
        module(*args, **kwargs)
    for name in waiting():
        raise LoadError(place, f"{name} has no shape yet, the example call does not reach it", "leave the module out")
    return ("lazy modules took shapes and first weights from one call on the example inputs, seed 0",)


def _onnx_source(path: Path, options: Options) -> Source:
    """An ONNX file has no functions of the user's; nothing of it runs but torch operations."""
    from stanza_compiler.onnx_model import load_onnx  # here, because onnx takes a tenth of a second to import

    if not path.is_file():
        raise UsageError(str(path), "no such file", "pass the path of an ONNX model")
    axes = dict(options.batch_axes)
    model = load_onnx(path.resolve(), place=path.name, inputs=options.inputs, batch_axes=axes)
    return Source(
        name=path.stem,
        place=path.name,
        basename=path.name,
        module=model.module,
        call=describe_call(model.module, model.args, {}, batch_axes={**model.batch_axes, **axes}, place=path.name),
        targets=None,
        hooks=Hooks(),
        origin=USER_MODULE,
        file=path.resolve(),
        root=path.resolve().parent,
    )


def _optional(user: ModuleType, name: str, root: Path, place: str) -> Any:
    function = getattr(user, name, None)
    if function is None:
        return None
    torch.manual_seed(0)
    with user_code(place, f"{name}()", root):
        return function()


def _examples(
    user: ModuleType, specs: tuple[InputSpec, ...], root: Path, place: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    kwargs = _optional(user, "example_kwargs", root, place) or {}
    if not isinstance(kwargs, dict):
        raise LoadError(place, f"example_kwargs() returned a {type(kwargs).__name__}", "return a dict")
    if specs:
        generator = torch.Generator().manual_seed(0)
        return tuple(drawn(spec, generator) for spec in specs), kwargs
    args = _optional(user, "example_inputs", root, place)
    if args is None and not kwargs:
        raise LoadError(place, "no example_inputs() in it", "define it or pass --input 32x3x224x224:float32")
    if args is not None and not isinstance(args, tuple | list):
        raise LoadError(place, f"example_inputs() returned a {type(args).__name__}", "return a tuple of inputs")
    return tuple(args or ()), kwargs


def _batch_axes(user: ModuleType, options: Options, root: Path, place: str) -> dict[str, int | None]:
    given = _optional(user, "batch_axes", root, place) or {}
    if not isinstance(given, dict):
        raise LoadError(place, f"batch_axes() returned a {type(given).__name__}", "return a dict of input name to axis")
    for name, axis in given.items():
        if axis is not None and type(axis) is not int:
            raise LoadError(place, f"the batch axis of {name} is {axis!r}", "give its number or None")
    return {**given, **dict(options.batch_axes)}


def _local_modules(root: Path, before: set[str]) -> list[str]:
    """Modules imported since `before` whose file, or folder where they have no file, lies in the user's folder."""
    found = []
    for name in sorted(set(sys.modules) - before | {USER_MODULE} & set(sys.modules)):
        module = sys.modules[name]
        place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
        if place and Path(place).is_relative_to(root) and not _is_installed(Path(place)):
            found.append(name)
    return found
