"""The models of the benchmarks of speed, and the ways in which they are compiled."""

from dataclasses import dataclass, replace
from pathlib import Path

from stanza_compiler.cluster import DEVICES, Cluster, Device
from stanza_compiler.codecs import PLAIN, Codecs
from stanza_compiler.compiler import compile_source
from stanza_compiler.options import Options
from stanza_compiler.plan import Request
from stanza_compiler.rehearse.contenders import PROGRAM
from stanza_compiler.rehearse.emitted import Emitted, read_emitted

EXAMPLES = Path(__file__).parents[1] / "examples"

HOOKS = """

def example_targets():
    return torch.arange({batch}) % 1000


def loss_fn(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets)


def make_optimizer(params):
    return torch.optim.SGD(params, lr=0.01)
"""

IMAGES = """
import torch
from torchvision.models import {network}


def build_model():
    return {network}(weights=None{arguments})


def example_inputs():
    return (torch.randn({batch}, 3, {pixels}, {pixels}),)
"""

MLP = """
import torch
from torch import nn


def build_model():
    body = (layer for _ in range(3) for layer in (nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()))
    head = (nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))
    return nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *body, nn.AdaptiveAvgPool2d(8), nn.Flatten(), *head)


def example_inputs():
    return (torch.randn({batch}, 3, {pixels}, {pixels}),)
"""

SOURCES = {
    "alexnet": IMAGES.replace("{network}", "alexnet").replace("{arguments}", ", dropout=0.0") + HOOKS,
    "vgg16": IMAGES.replace("{network}", "vgg16").replace("{arguments}", ", dropout=0.0") + HOOKS,
    "resnet50": IMAGES.replace("{network}", "resnet50").replace("{arguments}", "") + HOOKS,
    "mlp": MLP + HOOKS,
}
MODELS = (*SOURCES, "gpt_small", "lstm_lm", "dlrm", "face_head")

HALVED = Codecs(boundary="bf16", gradient="fp16")


@dataclass(frozen=True, slots=True)
class Way:
    """How to compile a model."""

    strategy: str = "auto"
    placement: str = "auto"
    codecs: Codecs = PLAIN


WAYS = {
    PROGRAM: Way(),
    "chosen-16bit": Way(codecs=HALVED),
    "dedicated": Way("separate", "dedicated"),
    "colocated": Way("separate", "colocated"),
    "sharded": Way("separate", "sharded"),
    "dedicated-16bit": Way("separate", "dedicated", HALVED),
    "colocated-16bit": Way("separate", "colocated", HALVED),
    "sharded-16bit": Way("separate", "sharded", HALVED),
}


@dataclass(frozen=True, slots=True)
class Model:
    """One of MODELS; images have `pixels` on a side, `batch` samples are a rank's."""

    name: str
    pixels: int
    batch: int


def processors(count: float | None) -> Device:
    """What a host has that may use `count` of this machine's processors; of all, the planner's `cpu`."""
    cpu = DEVICES["cpu"]
    if count is None:
        return cpu
    return replace(
        cpu,
        flops_per_s=count * cpu.flops_per_s,
        memory_bytes_per_s=count * cpu.memory_bytes_per_s,
        overhead_s=cpu.overhead_s / count,
    )


def compiled(
    model: Model, way: Way, hosts: int, bit_per_s: float, out: Path, *, host_cpus: float | None = None
) -> Emitted:
    """Compile for `hosts` machines with `host_cpus` processors into `out`, beside which the model's file is put.

    Raises StanzaError where the model can't be compiled in this way.
    """
    source = EXAMPLES / f"{model.name}.py"
    if model.name in SOURCES:
        source = out.parent / f"{model.name}.py"
        source.write_text(SOURCES[model.name].format(batch=model.batch, pixels=model.pixels), encoding="utf-8")
    cluster = Cluster(nodes=hosts, bandwidth_bit_per_s=bit_per_s, device=processors(host_cpus))
    request = Request(
        strategy=way.strategy,
        placement=way.placement,
        global_batch_size=model.batch * hosts,
        codecs=way.codecs,
    )
    compile_source(Options(str(source), out=out, cluster=cluster, request=request, verify=False))
    return read_emitted(out)


def plan_of(emitted: Emitted) -> str:
    """Who trains what in it, and what travels as what."""
    plan = emitted.plan
    allocation = plan["allocation"]
    if plan["verdict"] == "data-parallel":
        return "data-parallel"
    hosts = f"{allocation['conv_workers']} conv, {allocation['fc_workers']} fc, {allocation['placement']}"
    return f"{hosts}, {plan['boundary_dtype']}/{plan['gradient_codec']}"
