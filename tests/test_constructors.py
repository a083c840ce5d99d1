"""Lines that build torch.nn modules again."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.nn.utils.parametrize import register_parametrization, type_before_parametrizations

from stanza_compiler.constructors import constructor, is_leaf
from stanza_compiler.errors import EmitError

NAMES = {"nn": nn, "torch": torch, "math": math, "F": nn.functional}


def state_of(module: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (nn.Linear(3, 2), "nn.Linear(3, 2)"),
        (nn.MaxPool3d((2, 2, 2), padding=(0, 0, 0)),
         "nn.MaxPool3d(kernel_size=(2, 2, 2), stride=(2, 2, 2), padding=(0, 0, 0))"),
        (nn.Linear(3, 2, bias=False), "nn.Linear(3, 2, bias=False)"),
        (nn.Linear(3, 2, dtype=torch.float64), "nn.Linear(3, 2, dtype=torch.float64)"),
        (nn.Conv2d(3, 64, 11, stride=4, padding=2), "nn.Conv2d(3, 64, kernel_size=11, stride=4, padding=2)"),
        (nn.Conv2d(4, 8, (3, 1), padding="same"), 'nn.Conv2d(4, 8, kernel_size=(3, 1), padding="same")'),
        (nn.Conv1d(4, 8, 3, groups=4, padding_mode="circular"),
         'nn.Conv1d(4, 8, kernel_size=3, groups=4, padding_mode="circular")'),
        (nn.ConvTranspose2d(4, 2, 2, stride=2, output_padding=1),
         "nn.ConvTranspose2d(4, 2, kernel_size=2, stride=2, output_padding=1)"),
        (nn.BatchNorm2d(5), "nn.BatchNorm2d(5)"),
        (nn.BatchNorm2d(5, momentum=None, affine=False), "nn.BatchNorm2d(5, momentum=None, affine=False)"),
        (nn.MaxPool2d(3, stride=2), "nn.MaxPool2d(kernel_size=3, stride=2)"),
        (nn.AdaptiveAvgPool2d((6, 6)), "nn.AdaptiveAvgPool2d((6, 6))"),
        (nn.ReLU(inplace=True), "nn.ReLU(inplace=True)"),
        (nn.ReLU(), "nn.ReLU()"),
        (nn.Dropout(0.25), "nn.Dropout(p=0.25)"),
        (nn.LSTM(3, 4, num_layers=2, batch_first=True), "nn.LSTM(3, 4, num_layers=2, batch_first=True)"),
        (nn.RNN(3, 4, nonlinearity="relu"), 'nn.RNN(3, 4, nonlinearity="relu")'),
        (nn.Embedding(9, 4, padding_idx=0), "nn.Embedding(9, 4, padding_idx=0)"),
        (nn.MultiheadAttention(8, 2, batch_first=True), "nn.MultiheadAttention(8, 2, batch_first=True)"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), "nn.CrossEntropyLoss(label_smoothing=0.1)"),
        (weight_norm(nn.Linear(3, 2)), "nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))"),
        (spectral_norm(nn.ConvTranspose1d(3, 2, 4), n_power_iterations=2, eps=1e-6),
         "nn.utils.parametrizations.spectral_norm(nn.ConvTranspose1d(3, 2, kernel_size=4), n_power_iterations=2, "
         "eps=1e-06)"),
        (weight_norm(orthogonal(nn.Linear(4, 4)), "bias", dim=-1), "nn.utils.parametrizations.weight_norm("
         'nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), name="bias", dim=-1)'),
    ],
)  # fmt: skip
def test_the_line_is_what_one_would_write(module: nn.Module, line: str) -> None:
    assert constructor(module, "layer") == line


LAYER = nn.TransformerEncoderLayer(8, 2, dim_feedforward=12, batch_first=True, activation="gelu", norm_first=True)

MODULES: list[nn.Module] = [
    nn.Identity(),
    nn.Bilinear(3, 4, 2, bias=False),
    nn.Conv3d(2, 4, 3, dilation=2, padding_mode="replicate"),
    nn.ConvTranspose1d(2, 4, 3, padding=1, bias=False),
    nn.ConvTranspose3d(2, 4, (1, 2, 3), groups=2),
    nn.MaxPool1d(2, return_indices=True),
    nn.MaxPool3d(2, ceil_mode=True),
    nn.AvgPool2d(2, count_include_pad=False, divisor_override=3),
    nn.AvgPool1d(2),
    nn.LPPool2d(2, 3),
    nn.FractionalMaxPool2d(2, output_size=(3, 3)),
    nn.MaxUnpool2d(2),
    nn.AdaptiveMaxPool2d((None, 3)),
    nn.AdaptiveAvgPool1d(3),
    nn.BatchNorm1d(4, track_running_stats=False),
    nn.BatchNorm3d(4, eps=1e-3, momentum=0.2),
    nn.SyncBatchNorm(4),
    nn.InstanceNorm2d(4, affine=True),
    nn.GroupNorm(2, 4),
    nn.GroupNorm(2, 4, affine=False),
    nn.LayerNorm(4),
    nn.LayerNorm((3, 4), eps=1e-6, bias=False),
    nn.LayerNorm(4, elementwise_affine=False),
    nn.RMSNorm(4),
    nn.LocalResponseNorm(3, k=2.0),
    nn.CrossMapLRN2d(3),
    nn.Dropout2d(0.1, inplace=True),
    nn.AlphaDropout(0.3),
    nn.Embedding(9, 4, max_norm=2.0, scale_grad_by_freq=True, sparse=True),
    nn.EmbeddingBag(9, 4, mode="sum", include_last_offset=True),
    nn.GRU(3, 4, bidirectional=True, dropout=0.1, num_layers=2),
    nn.LSTM(3, 4, proj_size=2, bias=False),
    nn.LSTMCell(3, 4),
    nn.GRUCell(3, 4, bias=False),
    nn.RNNCell(3, 4, nonlinearity="relu"),
    nn.MultiheadAttention(8, 2, kdim=5, vdim=6, add_bias_kv=True, add_zero_attn=True),
    nn.MultiheadAttention(8, 2, bias=False, dropout=0.1),
    LAYER,
    nn.TransformerDecoderLayer(8, 2, dropout=0.0),
    nn.TransformerEncoder(LAYER, 2, norm=nn.LayerNorm(8), enable_nested_tensor=False),
    nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2), 3),
    nn.PReLU(),
    nn.PReLU(4),
    nn.ELU(0.5),
    nn.CELU(0.5, inplace=True),
    nn.SELU(),
    nn.GELU(approximate="tanh"),
    nn.SiLU(inplace=True),
    nn.Mish(),
    nn.Hardtanh(-2.0, 3.0),
    nn.ReLU6(),
    nn.Hardswish(),
    nn.Hardsigmoid(),
    nn.Hardshrink(0.2),
    nn.Softshrink(0.2),
    nn.Tanhshrink(),
    nn.LeakyReLU(0.2),
    nn.RReLU(0.1, 0.2),
    nn.Threshold(0.1, 20.0),
    nn.Softplus(2.0),
    nn.Softsign(),
    nn.Softmax(dim=-1),
    nn.LogSoftmax(dim=1),
    nn.Softmax2d(),
    nn.Softmin(dim=1),
    nn.Sigmoid(),
    nn.LogSigmoid(),
    nn.Tanh(),
    nn.GLU(1),
    nn.Flatten(),
    nn.Flatten(0, 1),
    nn.Unflatten(1, (2, 3)),
    nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=True),
    nn.Upsample(size=(4, 5)),
    nn.PixelShuffle(2),
    nn.PixelUnshuffle(2),
    nn.ChannelShuffle(2),
    nn.Fold((4, 4), 2),
    nn.Unfold(3, padding=1),
    nn.ZeroPad2d((1, 2, 3, 4)),
    nn.ConstantPad1d(2, math.inf),
    nn.ReflectionPad2d(1),
    nn.CircularPad2d(1),
    nn.CosineSimilarity(dim=2),
    nn.PairwiseDistance(p=math.inf),
    nn.UpsamplingNearest2d(scale_factor=2),
    nn.MSELoss(reduction="sum"),
    nn.BCEWithLogitsLoss(pos_weight=torch.ones(3)),
    nn.NLLLoss(weight=torch.ones(4), ignore_index=2),
    nn.SmoothL1Loss(beta=0.5),
    nn.HuberLoss(),
    nn.KLDivLoss(log_target=True),
    nn.CTCLoss(blank=2),
    nn.TripletMarginLoss(margin=0.3),
    nn.CosineEmbeddingLoss(margin=0.1),
    nn.Conv2d(3, 4, 3, dtype=torch.complex64),
    nn.Linear(3, 4).to(torch.bfloat16),
    weight_norm(nn.LSTM(3, 4), "weight_hh_l0"),
    orthogonal(nn.Linear(4, 4), orthogonal_map="cayley", use_trivialization=False),
    orthogonal(nn.Conv2d(3, 4, 3)),
    spectral_norm(weight_norm(nn.Linear(3, 4), dim=1), "bias"),
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: type(module).__name__)
def test_the_line_builds_a_module_that_holds_the_same_state_and_prints_the_same(module: nn.Module) -> None:
    rebuilt = eval(constructor(module, "layer"), dict(NAMES))
    assert type_before_parametrizations(rebuilt) is type_before_parametrizations(module)
    assert repr(rebuilt) == repr(module)
    assert state_of(rebuilt) == state_of(module)


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (nn.LPPool2d(2, 3), (torch.rand(1, 2, 6, 6),)),
        (nn.Hardtanh(-0.2, 0.3), (torch.randn(9),)),
        (nn.ConstantPad1d(2, math.inf), (torch.randn(1, 3),)),
        (nn.RMSNorm(4, eps=0.5), (torch.randn(2, 4),)),
        (nn.MultiheadAttention(8, 2, kdim=5, vdim=6, add_bias_kv=True, add_zero_attn=True),
         (torch.randn(3, 1, 8), torch.randn(4, 1, 5), torch.randn(4, 1, 6))),
        (nn.TransformerEncoder(LAYER, 2, norm=nn.LayerNorm(8), enable_nested_tensor=False), (torch.randn(1, 3, 8),)),
        (nn.TransformerDecoderLayer(8, 2, activation="gelu", layer_norm_eps=0.1), (torch.randn(3, 1, 8),) * 2),
        (nn.EmbeddingBag(9, 4, mode="sum"), (torch.tensor([[1, 2], [3, 4]]),)),
        (nn.LSTM(3, 4, num_layers=2, bidirectional=True), (torch.randn(5, 1, 3),)),
        (nn.PReLU(2), (torch.randn(1, 2, 3),)),
        (nn.CrossMapLRN2d(3, alpha=0.5), (torch.randn(1, 4, 2, 2),)),
        (spectral_norm(weight_norm(nn.Linear(3, 4), dim=1), "bias", eps=0.1), (torch.randn(2, 3),)),
        (spectral_norm(nn.ConvTranspose1d(3, 4, 2), dim=0), (torch.randn(2, 3, 5),)),
        (orthogonal(nn.Linear(4, 4), orthogonal_map="cayley", use_trivialization=False), (torch.randn(2, 4),)),
        (orthogonal(nn.Conv2d(3, 4, 4)), (torch.randn(1, 3, 4, 4),)),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_with_the_same_weights_the_rebuilt_module_computes_the_same(
    module: nn.Module, inputs: tuple[torch.Tensor, ...]
) -> None:
    rebuilt = eval(constructor(module.eval(), "layer"), dict(NAMES)).eval()
    rebuilt.load_state_dict(module.state_dict())
    torch.testing.assert_close(rebuilt(*inputs), module(*inputs), rtol=0, atol=0)


def changed(module: nn.Module, **attributes: Any) -> nn.Module:
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def hooked(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda *_: None)
    return module


class Pretender(nn.Tanh):
    """Not torch's, whatever it says."""

    __module__ = "torch.nn.modules.activation"


class Subclass(nn.Linear):
    """The user's own, which no line of torch alone can build."""


@pytest.mark.parametrize(
    "module",
    [
        nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
        Subclass(2, 2),
        nn.utils.parametrizations.weight_norm(Subclass(2, 2)),
        changed(nn.Linear(2, 2), extra=nn.Parameter(torch.ones(1))),
        changed(nn.Linear(2, 2), child=nn.ReLU()),
        changed(nn.Linear(2, 2), in_features=3),
        changed(nn.Linear(2, 2), scale=torch.ones(2)),
        changed(nn.BatchNorm1d(2), _non_persistent_buffers_set={"running_mean"}),
        changed(nn.LeakyReLU(), negative_slope=torch.ones(1, requires_grad=True)),
        changed(nn.TransformerEncoderLayer(8, 2), activation=lambda x: x),
    ],
    ids=lambda module: type(module).__name__,
)
def test_what_no_line_builds_again_is_refused_by_its_path(module: nn.Module) -> None:
    with pytest.raises(EmitError, match=r"^body\.3: no line of code builds this .* again; build .* by its constructor"):
        constructor(module, "body.3")


def test_what_a_user_notes_on_a_layer_is_no_part_of_it() -> None:
    noted = changed(nn.Linear(2, 3), stddev=0.1, note="from the paper", groups=(1, 2))
    assert constructor(noted, "layer") == "nn.Linear(2, 3)"
    with pytest.raises(EmitError):  # torch reads these, though instances have none of their own
        constructor(changed(nn.Linear(2, 3), dump_patches=True), "layer")


def test_a_hostile_hyper_parameter_is_written_as_a_string_or_refused() -> None:
    hostile = '"), print("out'
    with pytest.raises(EmitError):
        constructor(changed(nn.Conv2d(1, 1, 1), padding_mode=hostile), "layer")
    line = constructor(changed(nn.MSELoss(), reduction=hostile), "layer")
    assert eval(line, {"nn": nn, "print": None}).reduction == hostile


@pytest.mark.parametrize(
    ("module", "leaf"),
    [
        (nn.Linear(1, 1), True),
        (nn.MultiheadAttention(2, 1), True),
        (nn.Sequential(), False),
        (nn.ModuleList(), False),
        (nn.ParameterList(), False),
        (Subclass(1, 1), False),
        (nn.Module(), False),
        (weight_norm(nn.Linear(2, 2)), True),
        (weight_norm(nn.Linear(2, 2)).get_submodule("parametrizations.weight.0"), False),
        (orthogonal(nn.Linear(2, 2)), True),
        (orthogonal(Subclass(2, 2)), False),
        (register_parametrization(nn.Linear(2, 2), "weight", nn.Softplus()), False),
        (hooked(nn.Linear(2, 2)), False),
        (changed(nn.ReLU(), forward=torch.tanh), False),
        (Pretender(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_torchs_own_modules_are_leaves_unless_they_only_contain_others(module: nn.Module, leaf: bool) -> None:
    assert is_leaf(module) is leaf
