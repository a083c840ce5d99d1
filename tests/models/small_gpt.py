"""examples/gpt_small.py, smaller, with 22 sentences to learn; needs that file beside it."""

import gpt_small
import torch
from gpt_small import example_inputs as example_inputs
from gpt_small import example_targets as example_targets
from gpt_small import loss_fn as loss_fn
from gpt_small import make_optimizer as make_optimizer

gpt_small.VOCABULARY, gpt_small.TOKENS, gpt_small.WIDTH, gpt_small.LAYERS = 3000, 16, 32, 2
DTYPE = torch.float32


def build_model():
    return gpt_small.build_model().to(DTYPE)


class Sentences:
    def __len__(self) -> int:
        return 22

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(number)
        tokens = torch.randint(gpt_small.VOCABULARY, (gpt_small.TOKENS + 1,), generator=generator)
        return tokens[:-1], tokens[1:]


def make_dataset():
    return Sentences()
