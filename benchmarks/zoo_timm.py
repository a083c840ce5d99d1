"""Forty models of timm, each of another family."""

from benchmarks.zoo_models import Model


def timm_models() -> tuple[Model, ...]:
    """Every model as create_model() makes it, with random weights."""
    return tuple(Model(name, _file(name)) for name in sorted((*_ANY_SIZE, *_SIZES)))


def _file(name: str) -> str:
    size = _SIZES.get(name, 64)
    option = f", img_size={size}" if name in _SIZES and size not in (224, 240, 256) else ""
    return _FILE.format(name=name, option=option, size=size)


# Takes pictures of any size.
_ANY_SIZE = (
    "convmixer_768_32", "convnext_atto", "cspresnet50", "densenet121", "dla34", "dpn68", "edgenext_xx_small",
    "efficientnet_b0", "fasternet_t0", "ghostnet_100", "hgnetv2_b0", "hrnet_w18_small", "inception_next_atto",
    "mobilenetv3_small_050", "mobilenetv4_conv_small", "nfnet_l0", "pvt_v2_b0", "regnety_002", "repvgg_a0",
    "res2net50_14w_8s", "resnest14d", "resnet18", "resnetv2_50", "starnet_s1", "vovnet39a", "xception41",
)  # fmt: skip

# Is built for pictures of one size: small where the network can be, else its own.
_SIZES = {
    "beit_base_patch16_224": 64,
    "cait_xxs24_224": 64,
    "coat_tiny": 64,
    "coatnet_nano_rw_224": 64,
    "crossvit_tiny_240": 240,
    "deit_tiny_distilled_patch16_224": 64,
    "efficientformerv2_s0": 224,
    "eva02_tiny_patch14_336": 56,
    "levit_128s": 224,
    "maxvit_pico_rw_256": 256,
    "mixer_s32_224": 64,
    "swin_tiny_patch4_window7_224": 56,
    "tiny_vit_5m_224": 224,
    "xcit_nano_12_p16_224": 64,
}

_FILE = '''"""{name} of timm."""

import timm
import torch


def build_model():
    torch.manual_seed(0)
    return timm.create_model("{name}"{option})


def example_inputs(batch=2):
    return (torch.randn(batch, 3, {size}, {size}, generator=torch.Generator().manual_seed(batch)),)


def example_targets(batch=2):
    return torch.randint(0, 1000, (batch,), generator=torch.Generator().manual_seed(batch))


def loss_fn(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets)
'''
