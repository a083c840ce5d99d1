"""examples/lstm_lm.py, smaller, with 22 sentences to learn; needs that file beside it."""

import lstm_lm
import torch
from lstm_lm import example_inputs as example_inputs
from lstm_lm import example_targets as example_targets
from lstm_lm import loss_fn as loss_fn
from lstm_lm import make_optimizer as make_optimizer

lstm_lm.VOCABULARY, lstm_lm.TOKENS, lstm_lm.WIDTH = 3000, 12, 24
DTYPE = torch.float32


def build_model():
    return lstm_lm.build_model().to(DTYPE)


class Sentences:
    def __len__(self) -> int:
        return 22

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(number)
        tokens = torch.randint(lstm_lm.VOCABULARY, (lstm_lm.TOKENS + 1,), generator=generator)
        return tokens[:-1], tokens[1:]


def make_dataset():
    return Sentences()
