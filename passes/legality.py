"""Which cuts keep the meaning of the model."""

from collections.abc import Iterator
from itertools import pairwise

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from stanza_compiler.opgraph import Op, OpGraph, Rules
from stanza_compiler.passes.coupling import Coupling
from stanza_compiler.passes.profile import Profile


def legality(profile: Profile, root: nn.Module, coupling: Coupling) -> Rules:
    """The rules that every cut must respect, with what the user should know of them as notes."""
    graph = profile.graph
    notes: list[str] = []
    in_place, conv_only = _in_place_groups(profile, notes)
    together = [*in_place, *_container_groups(graph), *_shared_state_groups(profile, notes), *coupling.together]
    random = [op.name for op in graph.ops if op.is_random]
    notes += _state_notes(graph, root)
    notes += _parameter_writers(profile)
    notes += coupling.notes
    return Rules(
        together=tuple(together),
        order=tuple(pairwise(random)),
        conv_only=tuple(conv_only),
        fc_only=(*coupling.ops, *_never_sent(graph)),
        single_host=coupling.reason,
        notes=tuple(notes),
        uncut=coupling.reason or next(_batch_dependent(profile, root), ""),
    )


def _in_place_groups(profile: Profile, notes: list[str]) -> tuple[list[tuple[str, ...]], list[str]]:
    """An op that writes a tensor stays with the tensor's maker and with everyone who read it before the write."""
    graph = profile.graph
    inputs = {value.name for value in graph.inputs}
    groups: list[tuple[str, ...]] = []
    conv_only: list[str] = []
    writers: list[Op] = []
    bases: dict[int, str] = {}
    for name, storage in profile.storages.items():
        bases.setdefault(storage, name)
    # Who read each storage since it was written last; who did so before is with its maker already.
    readers: dict[int, list[str]] = {}
    for op in graph.ops:
        for storage in profile.mutations.get(op.name, ()):
            base = bases.get(storage, op.name)
            if storage in profile.state_storages or base == op.name:
                continue
            group = [name for name in dict.fromkeys((base, *readers.pop(storage, ()), op.name)) if name not in inputs]
            if base in inputs:
                conv_only += group
            groups.append(tuple(group))
            writers.append(op)
        for storage in {profile.storages[name] for name in op.inputs if name in profile.storages}:
            if not op.is_size:
                readers.setdefault(storage, []).append(op.name)
    if writers:
        first = writers[0]
        notes.append(
            f"{len(writers)} in-place ops stay in the segment of the tensor they write "
            f"(the first is {first.name}{_at(first)})"
        )
    return [group for group in groups if len(group) > 1], list(dict.fromkeys(conv_only))


def _container_groups(graph: OpGraph) -> Iterator[tuple[str, ...]]:
    """A tuple or list of tensors is never sent: who takes it apart stays with who makes it."""
    readers = _readers(graph)
    for op in graph.ops:
        if op.output is None and not op.is_size and op.name in readers:
            yield (op.name, *readers[op.name])


def _readers(graph: OpGraph) -> dict[str, list[str]]:
    """Who reads each value, arithmetic on sizes aside, in program order."""
    readers: dict[str, list[str]] = {}
    for op in graph.ops:
        for name in op.inputs if not op.is_size else ():
            readers.setdefault(name, []).append(op.name)
    return readers


def _never_sent(graph: OpGraph) -> Iterator[str]:
    """Ops whose value no message carries (a tuple, or what eval mode alone makes) but that the model returns."""
    yield from (op.name for op in graph.ops if op.output is None and not op.is_size and op.name in graph.outputs)


def _shared_state_groups(profile: Profile, notes: list[str]) -> Iterator[tuple[str, ...]]:
    """Ops that use one buffer that somebody writes share a segment; those that use one parameter share a role."""
    graph = profile.graph
    written = {
        profile.state_storages[storage]
        for storages in profile.mutations.values()
        for storage in storages
        if storage in profile.state_storages
    }
    users: dict[str, list[Op]] = {}
    for op in graph.ops:
        for name in dict.fromkeys((*op.parameters, *(buffer for buffer in op.buffers if buffer in written))):
            users.setdefault(name, []).append(op)
    for name, ops in users.items():
        if len(ops) > 1:
            is_parameter = name in graph.parameter
            what = f"parameter {name}" if is_parameter else f"buffer {name}"
            which = "which one role holds unless a plan parts them" if is_parameter else "which stay together"
            notes.append(f"{what} is used by {len(ops)} ops, {which} ({ops[0].name}{_at(ops[0])} first)")
            if not is_parameter:
                yield tuple(op.name for op in ops)


def _state_notes(graph: OpGraph, root: nn.Module) -> Iterator[str]:
    norms = [
        name for name, module in root.named_modules() if isinstance(module, _BatchNorm) and module.track_running_stats
    ]
    if norms:
        yield f"{len(norms)} BatchNorm layers see the batch of the rank that runs them: its own part, or its block's"
    used = {name for op in graph.ops for name in op.parameters}
    unused = [parameter.name for parameter in graph.parameters if parameter.name not in used]
    if unused:
        more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
        yield f"never used by forward, kept in the checkpoint: {', '.join(unused[:3])}{more}"
    for op in graph.ops:
        if op.uncounted:
            calls = ", ".join(op.uncounted)
            yield f"{op.name}{_at(op)} computes by {calls}, whose FLOPs can't be counted: priced by its bytes alone"


def _parameter_writers(profile: Profile) -> Iterator[str]:
    """Ops that change a parameter in forward, as an Embedding with max_norm does: gradients are summed, that is not."""
    for op in profile.graph.ops:
        for storage in profile.mutations.get(op.name, ()):
            name = profile.state_storages.get(storage)
            if name in profile.graph.parameter:
                what = f"{op.name}{_at(op)} changes parameter {name} in forward, by the samples that it sees"
                yield f"{what}: its copies drift apart where several ranks hold it"


def _batch_dependent(profile: Profile, root: nn.Module) -> Iterator[str]:
    """What makes a part in pieces, one after the other, differ from the part at once."""
    for name, module in root.named_modules():
        if isinstance(module, _BatchNorm):
            yield f"{type(module).__name__} '{name}' uses the statistics of what it sees at once"
    for op in profile.graph.ops:
        if "batch_norm" in op.kind:
            yield f"{op.name}{_at(op)} uses the statistics of what it sees at once"
        for storage in profile.mutations.get(op.name, ()):
            if storage in profile.state_storages:
                yield f"{op.name}{_at(op)} writes buffer {profile.state_storages[storage]} in each forward"


def _at(op: Op) -> str:
    return f", {op.source}" if op.source else ""
