"""The cut that the user asked for, as groups on the FC side."""

from difflib import get_close_matches

from stanza_compiler.cuts import Cuts, members, parameter_users, precedences
from stanza_compiler.errors import PlanError
from stanza_compiler.opgraph import OpGraph, Rules
from stanza_compiler.plan import Request


def requested_cut(graph: OpGraph, rules: Rules, cuts: Cuts, request: Request) -> int | None:
    """The FC groups of `fc_ops` or else of `cut_after`, None when neither was given.

    `cuts` don't bind the ops that use one parameter: these may be parted, by `cut_after` where there is no other way.
    Raises PlanError when an op is unknown or the cut illegal, saying what forbids it.
    """
    if request.fc_ops is not None:
        asked = "the plan"
        fc_ops = frozenset(_known(graph, name) for name in request.fc_ops)
    elif request.cut_after is not None:
        asked = f"--cut-after {request.cut_after}"
        fc_ops = cuts.ops(cuts.everything & ~_up_to(graph, cuts, request.cut_after))
    else:
        return None
    placed = fc_ops & cuts.group.keys()
    if why := _why_illegal(graph, rules, cuts, placed):
        raise PlanError(graph.name, f"{asked} is no legal cut: {why}", "move the cut, or leave it to the compiler")
    return sum(1 << group for group in {cuts.group[name] for name in placed})


def _known(graph: OpGraph, name: str) -> str:
    """The op of that name, or the last op of the module of that name."""
    if name in graph.op:
        return name
    within = [op.name for op in graph.ops if op.name.startswith(f"{name}.") or op.name.startswith(f"{name}#")]
    if within:
        return within[-1]
    modules = {op.name[:dot] for op in graph.ops for dot, letter in enumerate(op.name) if letter == "."}
    close = get_close_matches(name, sorted(graph.op.keys() | modules), n=3, cutoff=0.5)
    remedy = f"did you mean {' or '.join(close)}?" if close else "see the op names in --dump profile"
    raise PlanError(graph.name, f"no op or module {name!r} in the model", remedy)


def _up_to(graph: OpGraph, cuts: Cuts, name: str) -> int:
    """The op, what it needs, what must be in CONV, and earlier ops that depend on these alone.

    Ops that use one parameter come along together, unless one of them depends on the op itself.
    """
    last = _known(graph, name)
    if graph.op[last].is_size:
        what = f"{last} is arithmetic on sizes, which runs wherever it is needed"
        raise PlanError(graph.name, what, "name an op that yields a tensor")
    position = {op.name: place for place, op in enumerate(graph.ops)}
    number = cuts.group[last]
    conv_groups = cuts.earlier[number]
    if not cuts.conv_only & cuts.later[number]:
        conv_groups |= cuts.conv_only
    behind = (cuts.later[number] | cuts.fc_only) & ~conv_groups
    ties: list[int] = []
    for tie in _ties(graph, cuts):
        if not _together(cuts, conv_groups, [*ties, tie]) & behind:
            ties.append(tie)
    conv_groups = _together(cuts, conv_groups, ties)
    for other in members(cuts.everything & ~behind):
        joined = _together(cuts, conv_groups | 1 << other, ties)
        new = joined & ~conv_groups
        is_before = all(position[op] <= position[last] for each in members(new) for op in cuts.groups[each])
        if is_before and not new & behind and all(not cuts.earlier[each] & ~joined for each in members(new)):
            conv_groups = joined
    return conv_groups


def _ties(graph: OpGraph, cuts: Cuts) -> tuple[int, ...]:
    """The groups that use one parameter, for each parameter that several use."""
    users = (
        sum(1 << number for number in {cuts.group[name] for name in names if name in cuts.group})
        for names in parameter_users(graph).values()
    )
    return tuple(dict.fromkeys(tie for tie in users if tie & (tie - 1)))


def _together(cuts: Cuts, conv_groups: int, ties: list[int]) -> int:
    """CONV with what one of `ties` binds to it, and all that runs in CONV if that does."""
    grown = True
    while grown:
        grown = False
        for tie in ties:
            if tie & conv_groups and tie & ~conv_groups:
                for number in members(tie & ~conv_groups):
                    conv_groups |= cuts.earlier[number]
                grown = True
    return conv_groups


def _why_illegal(graph: OpGraph, rules: Rules, cuts: Cuts, fc_ops: frozenset[str]) -> str:
    """What a cut breaks, empty when it is legal."""
    for earlier, later, why in precedences(graph, rules, one_cut=False):
        if earlier in fc_ops and later not in fc_ops:
            return f"{why}, and would run in CONV before {earlier} runs in FC" if earlier not in why else why
    for name in rules.conv_only:
        if name in fc_ops:
            return f"{name} must be in CONV"
    for name in rules.fc_only:
        if name not in fc_ops:
            return f"{name} must be in FC"
    for side, names in (("CONV", cuts.group.keys() - fc_ops), ("FC", fc_ops)):
        if not any(graph.op[name].has_work for name in names):
            return f"it leaves {side} without work"
    return ""
