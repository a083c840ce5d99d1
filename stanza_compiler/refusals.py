"""What a front-end's exception says to the user."""

import linecache
import traceback
from pathlib import Path

import torch
from torch import nn

from stanza_compiler.errors import TraceError
from stanza_compiler.loader import Source, first_line, user_line
from stanza_compiler.trace_export import BatchError
from stanza_compiler.traced import FrontEnd


def refusal(source: Source, front_end: FrontEnd, error: Exception, root: nn.Module) -> TraceError:
    """The TraceError for what tracing `root` raised: line, cause, what to change, and the module that is to blame."""
    module = _module_at(error, root)
    place = user_line(error, source.root) or _any_line(error) or source.place
    first = first_line(error)
    if front_end == "export":
        return _export_refusal(source, place, error, module)
    cause = first.partition(". See the torch.fx docs")[0].partition(". This can be attempted")[0]
    if "inputs to control flow" in first:
        cause = f"the branch `{_code_at(source, place)}` depends on a tensor or its size"
        remedy = "use torch.where, or decide it outside forward()"
    elif isinstance(error, TypeError):
        remedy = "replace Python arithmetic on tensors or sizes there by torch functions"
    else:
        remedy = "rewrite that line in torch operations"
    return TraceError(place, f"torch.fx can't trace this: {cause}", remedy, module=module)


def _export_refusal(source: Source, place: str, error: Exception, module: str) -> TraceError:
    cause = f"torch.export can't trace this: {type(error).__name__}: {first_line(error)}"
    remedy = "rewrite that line in torch operations"
    if isinstance(error, BatchError):
        cause, remedy = f"torch.export: {error}", "let forward() treat every batch size alike"
    elif "data-dependent" in str(error):
        cause = f"torch.export: the branch `{_code_at(source, place)}` depends on a tensor's values"
        remedy = "use torch.where, or decide it outside forward()"
    return TraceError(place, cause, remedy, module=module)


def _any_line(error: Exception) -> str:
    torch_folder = Path(torch.__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if not path.is_relative_to(torch_folder) and not path.is_relative_to(Path(__file__).resolve().parent):
            return f"{path.name}:{frame.lineno}" if "stanza_compiler" not in path.parts else ""
    return ""


def _code_at(source: Source, place: str) -> str:
    file, _, line = place.rpartition(":")
    text = linecache.getline(str(source.root / file), int(line)) if line.isdigit() else ""
    return text.strip().removesuffix(":") or place


def joined(first: TraceError, second: TraceError) -> TraceError:
    """What both front-ends say, in one error at the place of the first that knows a line."""
    if ":" not in first.place and ":" in second.place:
        first, second = second, first
    where = "" if second.place == first.place else f" at {second.place}"
    return TraceError(first.place, f"{first.what} ({second.what}{where})", first.remedy)


def _module_at(error: Exception, root: nn.Module) -> str:
    """The path of the submodule in whose own code `error` arose; empty for the model itself and unknown ones."""
    paths = {id(module): path for path, module in root.named_modules()}
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    owners = (paths.get(id(frame.f_locals.get("self"))) for frame in reversed(frames))
    return next((path for path in owners if path is not None), "")
