"""The 109 constructors of torchvision that can be exported.

Of the 121 that list_models() names, 12 are detection models, whose number of boxes depends on the picture. Those
called quantized_... are float networks with quantize=False, their default.
"""

from torchvision import models

from benchmarks.zoo_models import Model

# Inputs are small where the network allows it: 64 px, and 8 frames of them.
_SIZES = {"inception_v3": 299, "quantized_inception_v3": 299, "maxvit_t": 224, "raft_large": 128, "raft_small": 128}
_CLIPS = {"s3d": (16, 224, 224), "mvit_v1_b": (4, 64, 64), "mvit_v2_s": (4, 64, 64)}


def torchvision_models() -> tuple[Model, ...]:
    """Every constructor with its default number of classes and random weights."""
    return tuple(Model(name, _file(name)) for name in models.list_models() if _kind(name) != "detection")


def _kind(name: str) -> str:
    """The folder of torchvision.models that it comes from: video, segmentation, ...; empty for classifiers."""
    _, _, folder, *rest = models.get_model_builder(name).__module__.split(".")
    return folder if rest else ""


def _file(name: str) -> str:
    kind = _kind(name)
    shape = (3, *_clip(name)) if kind == "video" else (3, _size(name), _size(name))
    build = _SMALL_MVIT if name.startswith("mvit") else f"return models.get_model({_arguments(name)})"
    calls = _CALLS.get(kind, _CLASSIFICATION).replace("SHAPE", ", ".join(map(str, shape)))
    return _HEAD.replace("BUILD", build).replace("NAME", name) + calls


def _clip(name: str) -> tuple[int, int, int]:
    return _CLIPS.get(name, (8, 64, 64))


def _size(name: str) -> int:
    patch = int(name.rpartition("_")[2]) if name.startswith("vit") else 0
    return 4 * patch or _SIZES.get(name, 64)


def _arguments(name: str) -> str:
    text = f"{name!r}, weights=None"
    if _kind(name) == "segmentation":
        text += ", weights_backbone=None" if name.startswith("lraspp") else ", weights_backbone=None, aux_loss=True"
    return text + (f", image_size={_size(name)}" if name.startswith("vit") else "")


_HEAD = '''"""NAME of torchvision."""

import torch
import torch.nn.functional as F
from torchvision import models


def build_model():
    torch.manual_seed(0)
    BUILD
'''

_SMALL_MVIT = """from unittest import mock

    from torchvision.models.video import mvit

    original = mvit.MViT

    def small(**options):  # NAME() itself fixes 16 frames of 224 px, which take minutes
        return original(**options | {"spatial_size": (64, 64), "temporal_size": 4})

    with mock.patch.object(mvit, "MViT", small):
        return models.get_model("NAME", weights=None)"""

_CLASSIFICATION = """

def example_inputs(batch=2):
    return (torch.randn(batch, SHAPE, generator=torch.Generator().manual_seed(batch)),)


def example_targets(batch=2):
    return torch.randint(0, 400, (batch,), generator=torch.Generator().manual_seed(batch))


def loss_fn(outputs, targets):
    if isinstance(outputs, torch.Tensor):
        return F.cross_entropy(outputs, targets)
    main, *auxiliary = (F.cross_entropy(logits, targets) for logits in outputs if logits is not None)
    return main + 0.3 * sum(auxiliary)
"""

_SEGMENTATION = """

def example_inputs(batch=2):
    return (torch.randn(batch, SHAPE, generator=torch.Generator().manual_seed(batch)),)


def example_targets(batch=2):
    return torch.randint(0, 21, (batch, 64, 64), generator=torch.Generator().manual_seed(batch))


def loss_fn(outputs, targets):
    loss = F.cross_entropy(outputs["out"], targets)
    return loss + 0.5 * F.cross_entropy(outputs["aux"], targets) if "aux" in outputs else loss
"""

_OPTICAL_FLOW = """

def example_inputs(batch=2):
    generator = torch.Generator().manual_seed(batch)
    return tuple(torch.rand(batch, SHAPE, generator=generator) * 2 - 1 for _ in range(2))


def example_kwargs(batch=2):
    return {"num_flow_updates": 2}


def example_targets(batch=2):
    return torch.randn(batch, 2, 128, 128, generator=torch.Generator().manual_seed(batch))


def loss_fn(outputs, targets):
    return sum(0.8 ** (len(outputs) - i) * (flow - targets).abs().mean() for i, flow in enumerate(outputs, 1))
"""

_CALLS = {"segmentation": _SEGMENTATION, "optical_flow": _OPTICAL_FLOW}
