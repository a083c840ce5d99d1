"""Meta's LLaMA-3-8B as transformers builds it, without memory.

    stanza-compile benchmarks/llama3_8b.py --no-verify --dry-run

By hand, 2 FLOPs per multiply-add, for 2 x 512 tokens: 32 layers of 4096 x (4096 + 1024 + 1024 + 4096) attention
weights, 3 x 4096 x 14336 MLP weights and 2 x 512 x 4096 a token of attention (not halved for the causal mask), and a
head of 4096 x 128256: 15,644,418,375,680.
"""

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


def build_model() -> nn.Module:
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        use_cache=False,
    )
    with torch.device("meta"):
        return LlamaForCausalLM(config)


def example_inputs() -> tuple[torch.Tensor]:
    return (torch.zeros(2, 512, dtype=torch.int64),)
