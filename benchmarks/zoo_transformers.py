"""Twenty architectures of transformers, tiny, with the heads that users train."""

from dataclasses import dataclass
from typing import Any

from benchmarks.zoo_models import Model


@dataclass(frozen=True, slots=True)
class _Tiny:
    """A head and its configuration, both by class name, and what it is called with: lines of a dict.

    `loss` is the source of loss_fn and example_targets, for the heads that are not given labels.
    """

    name: str
    head: str
    config: str
    options: dict[str, Any]
    inputs: tuple[str, ...]
    loss: str = ""


def transformers_models() -> tuple[Model, ...]:
    """Every model with its default dropout; layer drop, which picks layers in Python, is off."""
    return tuple(Model(tiny.name, _file(tiny)) for tiny in _MODELS)


def _file(tiny: _Tiny) -> str:
    return _FILE.format(
        name=tiny.name,
        head=tiny.head,
        config=tiny.config,
        options="".join(f"        {name}={value!r},\n" for name, value in tiny.options.items()),
        inputs="".join(f"        {line},\n" for line in tiny.inputs),
        loss=tiny.loss,
    )


_FILE = '''"""{name} of transformers, tiny."""

import torch
from transformers import {config}, {head}


def build_model():
    torch.manual_seed(0)
    config = {config}(
{options}    )
    return {head}(config)


def example_kwargs(batch=2):
    torch.manual_seed(batch)
    mask = torch.ones(batch, 12, dtype=torch.long)
    mask[-1, 10:] = 0  # one sample is padded
    return {{
{inputs}    }}
{loss}'''

# The model's own loss asks for len(logits), which fixes the batch for torch.export.
_CONTRAST = """

def loss_fn(outputs, targets):
    logits = outputs["logits_per_text"]
    pairs = torch.arange(logits.shape[0], device=logits.device)
    halves = (torch.nn.functional.cross_entropy(way, pairs) for way in (logits, logits.t()))
    return sum(halves) / 2
"""

# Given labels, the model itself would branch on their largest value.
_TRANSCRIBE = """

def example_targets(batch=2):
    return torch.randint(3, 99, (batch, 7), generator=torch.Generator().manual_seed(batch))


def loss_fn(outputs, targets):
    log_probabilities = outputs["logits"].log_softmax(-1).transpose(0, 1)
    times, batch, _ = log_probabilities.shape
    return torch.nn.functional.ctc_loss(log_probabilities, targets, (times,) * batch, (7,) * batch)
"""

_TOKENS = '"input_ids": torch.randint(3, 99, (batch, 12))'
_PADDED = '"attention_mask": mask'
_PIXELS = '"pixel_values": torch.randn(batch, 3, 32, 32)'
_CLASS = '"labels": torch.randint(0, 3, (batch,))'
_NEXT = '"labels": torch.randint(3, 99, (batch, 12)).masked_fill(mask == 0, -100)'
_SENTENCE = '"labels": torch.randint(3, 99, (batch, 7))'
_CLASSIFY = (_TOKENS, _PADDED, _CLASS)
_CONTINUE = (_TOKENS, _PADDED, _NEXT)
_TRANSLATE = (_TOKENS, _PADDED, _SENTENCE)

_VISION: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
}  # fmt: skip
_ENCODER = {"vocab_size": 99, **_VISION}
_DECODER = {**_ENCODER, "num_key_value_heads": 2, "use_cache": False}
_TWO_SIDES: dict[str, Any] = {
    "vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "use_cache": False,
}  # fmt: skip
_THREE = {"num_labels": 3}

_MODELS = (
    _Tiny("bert", "BertForSequenceClassification", "BertConfig", {**_ENCODER, **_THREE}, _CLASSIFY),
    _Tiny(
        "distilbert",
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, **_THREE},
        _CLASSIFY,
    ),
    _Tiny(
        "deberta-v2",
        "DebertaV2ForTokenClassification",
        "DebertaV2Config",
        {
            **_ENCODER, **_THREE, "relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"],
            "norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False,
        },
        (_TOKENS, _PADDED, '"labels": torch.randint(0, 3, (batch, 12))'),
    ),
    _Tiny(
        "gpt2",
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "vocab_size": 99, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "use_cache": False,
            "bos_token_id": 1, "eos_token_id": 2,
        },
        _CONTINUE,
    ),
    _Tiny(
        "opt",
        "OPTForCausalLM",
        "OPTConfig",
        {
            "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64,
            "word_embed_proj_dim": 32, "use_cache": False,
        },
        _CONTINUE,
    ),
    _Tiny("llama", "LlamaForCausalLM", "LlamaConfig", _DECODER, _CONTINUE),
    _Tiny("qwen2", "Qwen2ForCausalLM", "Qwen2Config", _DECODER, _CONTINUE),
    _Tiny(
        "gemma2",
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**_DECODER, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8},
        _CONTINUE,
    ),
    _Tiny("mixtral", "MixtralForCausalLM", "MixtralConfig", {**_DECODER, "num_local_experts": 4}, _CONTINUE),
    _Tiny(
        "mamba",
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": 99, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "use_cache": False},
        (_TOKENS, _NEXT),
    ),
    _Tiny(
        "t5",
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
            "decoder_start_token_id": 0, "use_cache": False,
        },
        _TRANSLATE,
    ),
    _Tiny("bart", "BartForConditionalGeneration", "BartConfig", _TWO_SIDES, _TRANSLATE),
    _Tiny(
        "whisper",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            **_TWO_SIDES, "num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 16, "pad_token_id": 0,
            "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
        },
        ('"input_features": torch.randn(batch, 16, 40)', _SENTENCE),
    ),
    _Tiny(
        "wav2vec2",
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        {
            **_ENCODER, "conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 8), "layerdrop": 0.0,
            "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False,
        },
        ('"input_values": torch.randn(batch, 600)',),
        _TRANSCRIBE,
    ),
    _Tiny(
        "vit",
        "ViTForImageClassification",
        "ViTConfig",
        {**_VISION, **_THREE, "image_size": 32, "patch_size": 8, "hidden_dropout_prob": 0.1},
        (_PIXELS, _CLASS),
    ),
    _Tiny(
        "swin",
        "SwinForImageClassification",
        "SwinConfig",
        {
            "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4,
            **_THREE,
        },
        (_PIXELS, _CLASS),
    ),
    _Tiny(
        "resnet",
        "ResNetForImageClassification",
        "ResNetConfig",
        {"embedding_size": 16, "hidden_sizes": (16, 32, 48, 64), "depths": (1, 1, 2, 1), **_THREE},
        (_PIXELS, _CLASS),
    ),
    _Tiny(
        "convnext",
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": (16, 32, 48, 64), "depths": (1, 1, 2, 1), "drop_path_rate": 0.1, **_THREE},
        (_PIXELS, _CLASS),
    ),
    _Tiny(
        "clip",
        "CLIPModel",
        "CLIPConfig",
        {
            "text_config": {**_ENCODER, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
            "vision_config": {**_VISION, "image_size": 32, "patch_size": 8},
            "projection_dim": 16,
        },
        (_TOKENS, _PADDED, _PIXELS),
        _CONTRAST,
    ),
    _Tiny(
        "segformer",
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {
            "hidden_sizes": (8, 16, 24, 32), "depths": (1, 1, 1, 1), "num_attention_heads": (1, 2, 2, 4),
            "decoder_hidden_size": 32, **_THREE,
        },
        (_PIXELS, '"labels": torch.randint(0, 3, (batch, 32, 32))'),
    ),
)  # fmt: skip
