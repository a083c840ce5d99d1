"""Graphs written as numbers: published networks, and random ones for the planner to be compared on."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, product

from hypothesis import strategies as st

from stanza_compiler.cuts import Cuts
from stanza_compiler.dataflow import tensor_reads, tensors
from stanza_compiler.opgraph import Kind, Op, OpGraph, Parameter, Rules, Value


def value(
    name: str,
    bytes_per_sample: int = 0,
    *,
    constant_bytes: int = 0,
    kind: Kind = "batched",
    requires_grad: bool = True,
) -> Value:
    return Value(name, (2, 1), "float32", kind, 0, bytes_per_sample, constant_bytes, requires_grad)


def parameter(name: str, elements: int, *, trainable: bool = True) -> Parameter:
    return Parameter(name, (elements,), "float32", elements, 4 * elements, trainable)


def cnn(
    name: str,
    pixels: int,
    convolutions: list[tuple[int, int, int, int, int]],
    linears: list[tuple[int, int]],
    *,
    pooled_after: dict[int, int],
) -> OpGraph:
    """Convolutions of (channels in, channels out, kernel, size of output, groups) with a bias, each with its ReLU;
    `pooled_after` gives the size behind a convolution's pooling; then flatten and linears of (in, out)."""
    ops: list[Op] = []
    parameters: list[Parameter] = []
    image = value("x", 3 * pixels * pixels * 4, requires_grad=False)
    last = image

    def add(op: str, kind: str, output_bytes: int, *, flops: int = 0, elements: int = 0, is_view: bool = False) -> None:
        nonlocal last
        if elements:
            parameters.append(parameter(f"{op}.weight", elements))
        output = value(op, output_bytes)
        ops.append(
            Op(
                op,
                kind,
                (last.name,),
                output,
                parameters=(f"{op}.weight",) if elements else (),
                forward_flops=flops,
                backward_flops=2 * flops,
                memory_bytes_per_sample=0 if is_view else last.bytes_per_sample + output_bytes,
                constant_memory_bytes=4 * elements,
            )
        )
        last = output

    for place, (channels, filters, kernel, size, groups) in enumerate(convolutions):
        weights = filters * channels // groups * kernel * kernel
        output_bytes = 4 * filters * size * size
        add(f"conv{place}", "Conv2d", output_bytes, flops=2 * weights * size * size, elements=weights + filters)
        add(f"relu{place}", "ReLU", output_bytes)
        if place in pooled_after:
            add(f"pool{place}", "MaxPool2d", 4 * filters * pooled_after[place] ** 2)
    add("flatten", "flatten", last.bytes_per_sample, is_view=True)
    for place, (features, units) in enumerate(linears):
        add(f"linear{place}", "Linear", 4 * units, flops=2 * features * units, elements=features * units + units)
        if place + 1 < len(linears):
            add(f"linear{place}.relu", "ReLU", 4 * units)
    return OpGraph(name, 64, (image,), tuple(ops), (last.name,), tuple(parameters), target_bytes=8)


def vgg16() -> OpGraph:
    """VGG16 at 224 px (Simonyan & Zisserman 2014, configuration D)."""
    plan = [(3, 64, 224), (64, 64, 224), (64, 128, 112), (128, 128, 112), (128, 256, 56), (256, 256, 56)]
    plan += [(256, 256, 56), (256, 512, 28), (512, 512, 28), (512, 512, 28), *[(512, 512, 14)] * 3]
    return cnn(
        "vgg16",
        224,
        [(channels, filters, 3, size, 1) for channels, filters, size in plan],
        [(25088, 4096), (4096, 4096), (4096, 1000)],
        pooled_after={1: 112, 3: 56, 6: 28, 9: 14, 12: 7},
    )


def alexnet() -> OpGraph:
    """AlexNet at 224 px in the one-tower form (Krizhevsky 2014), as torchvision has it."""
    convolutions = [(3, 64, 11, 55, 1), (64, 192, 5, 27, 1), (192, 384, 3, 13, 1), (384, 256, 3, 13, 1)]
    return cnn(
        "alexnet",
        224,
        [*convolutions, (256, 256, 3, 13, 1)],
        [(9216, 4096), (4096, 4096), (4096, 1000)],
        pooled_after={0: 27, 1: 13, 4: 6},
    )


def alexnet_64() -> OpGraph:
    """The same at 64 px: its average pooling, which keeps 6 x 6 at 224 px, makes 6 x 6 of one value."""
    convolutions = [(3, 64, 11, 15, 1), (64, 192, 5, 7, 1), (192, 384, 3, 3, 1), (384, 256, 3, 3, 1)]
    small = cnn("alexnet", 64, [*convolutions, (256, 256, 3, 3, 1)], [(9216, 4096), (4096, 4096), (4096, 1000)],
                pooled_after={0: 7, 1: 3, 4: 1})  # fmt: skip
    place = next(index for index, op in enumerate(small.ops) if op.name == "flatten")
    enlarged = value("avgpool", 4 * 9216)
    pool = Op("avgpool", "AdaptiveAvgPool2d", ("pool4",), enlarged, memory_bytes_per_sample=4 * (256 + 9216))
    flatten = replace(small.ops[place], inputs=("avgpool",), output=value("flatten", 4 * 9216))
    return replace(small, ops=(*small.ops[:place], pool, flatten, *small.ops[place + 1 :]))


def every_cut(cuts: Cuts) -> tuple[int, ...]:
    """The FC side of every legal cut, group by group."""
    sides = [0]
    for number, earlier in enumerate(cuts.earlier):
        sides = [side for side in sides if not earlier & side] + [side | 1 << number for side in sides]
    return tuple(side for side in sides if cuts.is_legal(side))


def legal_fronts(graph: OpGraph, rules: Rules) -> list[tuple[frozenset[str], frozenset[str]]]:
    """(front, behind) of every plan with something trained in front."""
    placed = [op.name for op in graph.ops if not op.is_size]
    every = (dict(zip(placed, levels, strict=True)) for levels in product((0, 1, 2), repeat=len(placed)))
    plans = (level for level in every if 0 in level.values() and is_legal(graph, rules, level))
    return [
        (frozenset(name for name in placed if level[name] == 0), frozenset(name for name in placed if level[name] == 2))
        for level in plans
    ]


def is_legal(graph: OpGraph, rules: Rules, level: Mapping[str, int]) -> bool:
    """Whether a plan obeys the rules by their meaning; `level` is 0 for ops in front of CONV, 1 in it, 2 behind it.

    In front must be something that trains, unless nothing is there.
    """
    reads = tensor_reads(graph)
    trained = {each.name for each in graph.parameters if each.trainable}
    pairs = [(source, name) for name in level for source in reads[name] if source in level]
    orders = [(one, other) for one, other in rules.order if one in level and other in level]
    if any(level[one] > level[other] for one, other in (*pairs, *orders)):
        return False
    if any(graph.op[one].output is None and level[one] != level[other] for one, other in pairs):
        return False
    if any(len({level[name] for name in group if name in level}) > 1 for group in rules.together):
        return False
    if any(level[name] != 1 for name in rules.conv_only if name in level):
        return False
    if any(level[name] != 2 for name in rules.fc_only if name in level):
        return False
    roles: dict[str, set[bool]] = {}
    for name in level:
        for used in graph.op[name].parameters:
            roles.setdefault(used, set()).add(level[name] == 1)
    if any(len(both) > 1 for both in roles.values()):
        return False
    if rules.single_host and any(
        tensor.value.kind == "per-rank"
        and (
            {level[name] for name in tensor.readers} - {level[tensor.maker] if tensor.maker else 1}
            or (tensor.maker and tensor.is_output and level[tensor.maker] != 2)
        )
        for tensor in tensors(graph)
    ):
        return False
    sides = [[name for name in level if level[name] == number] for number in (0, 1, 2)]
    has_work = [any(graph.op[name].has_work for name in side) for side in sides]
    trains = any(trained & set(graph.op[name].parameters) for name in sides[0])
    in_front = trains if sides[0] else has_work[2]
    return in_front and has_work[1] and (has_work[2] or not (sides[2] or rules.single_host))


@st.composite
def random_models(draw: st.DrawFn) -> tuple[OpGraph, Rules]:
    """Up to 8 ops with shared and frozen parameters, sizes, tuples, early outputs, pins, groups and orders."""
    count = draw(st.integers(2, 8))
    names = [f"op{place}" for place in range(count)]
    parameters = [
        parameter(f"w{place}", draw(st.integers(1, 10**6)), trainable=draw(st.integers(0, 4)) > 0) for place in range(4)
    ]
    known = ["x", "y"]
    ops = []
    for name in names:
        sources = draw(st.lists(st.sampled_from(known[-4:]), min_size=1, max_size=3, unique=True))
        role = draw(st.sampled_from(["plain", "plain", "plain", "view", "size", "tuple"]))
        kind: Kind = draw(st.sampled_from(["batched", "batched", "batched", "replicated", "per-rank"]))
        per_sample = 0 if kind == "replicated" else draw(st.integers(0, 10**5))
        output = value(
            name,
            per_sample,
            constant_bytes=0 if kind == "batched" else draw(st.integers(0, 10**5)),
            kind=kind,
            requires_grad=draw(st.booleans()),
        )
        if role in ("view", "size"):
            ops.append(Op(name, role, tuple(sources), None if role == "size" else output, is_size=role == "size"))
        else:
            flops = draw(st.integers(0, 10**8))
            used = draw(st.lists(st.sampled_from(parameters), max_size=2, unique=True))
            ops.append(
                Op(
                    name,
                    draw(st.sampled_from([role, "Linear", "Embedding"])),
                    tuple(sources),
                    None if role == "tuple" else output,
                    parameters=tuple(each.name for each in used),
                    sparse_lookups=draw(st.sampled_from([0, 0, 0.5, 1000])) if len(used) == 1 else 0,
                    forward_flops=flops,
                    backward_flops=draw(st.integers(0, 3)) * flops,
                    constant_flops=draw(st.sampled_from([0, 0, 10**6])),
                    memory_bytes_per_sample=draw(st.integers(0, 10**6)),
                    constant_memory_bytes=draw(st.integers(0, 10**6)),
                )
            )
        known.append(name)
    tensors = [op.name for op in ops if op.output is not None]
    outputs = draw(st.lists(st.sampled_from([*tensors, "x"]), min_size=1, max_size=2, unique=True))
    inputs = (value("x", draw(st.integers(1, 10**5)), requires_grad=False), value("y", 400, requires_grad=False))
    graph = OpGraph(
        "random", 4, inputs, tuple(ops), tuple(outputs), tuple(parameters), target_bytes=draw(st.sampled_from([0, 8]))
    )
    pairs = list(combinations(names, 2))
    rules = Rules(
        together=tuple(draw(st.lists(st.sampled_from(pairs), max_size=1))),
        order=tuple(draw(st.lists(st.sampled_from(pairs), max_size=2))),
        conv_only=tuple(draw(st.lists(st.sampled_from(names[:3]), max_size=1))),
        fc_only=tuple(draw(st.lists(st.sampled_from(names[-3:]), max_size=1))),
        single_host=draw(st.sampled_from(["", "", "the loss couples samples"])),
    )
    return graph, rules
