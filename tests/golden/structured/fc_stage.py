"""The parameter-heavy stage of structured.py: 13 ops, 125,440 parameters, 247,860 forward FLOPs a sample."""

import torch
from torch import nn
from user_model import Result


class FcStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Linear(6, 5)
        self.words = nn.Embedding(50, 24)
        self.fc = nn.Linear(408, 300)
        self.out = nn.Linear(300, 5)

    def forward(self, batch_tokens, gate, extra_offset, conv):
        """Take batch_tokens: i64[B, 7], gate: f32[B, 6, 8, 8], extra_offset: f32[B, 5], conv: f32[B, 6, 8, 8];
        give the model's output.
        """
        conv = torch.relu(conv)                                       # structured.py:26
        conv = conv * gate                                            # structured.py:28
        batch_tokens = self.words(batch_tokens)                       # structured.py:31
        batch_tokens = batch_tokens.mean(1)
        flatten = conv.flatten(1)                                     # structured.py:32
        flatten = torch.cat([flatten, batch_tokens], 1)
        flatten = self.fc(flatten)
        flatten = torch.relu(flatten)
        flatten = flatten ** 2
        flatten = self.out(flatten)                                   # structured.py:33
        flatten = flatten + extra_offset
        conv = conv.mean((2, 3))
        conv = self.early(conv)
        return Result(main=flatten, early=conv, nothing=None, more={"text": batch_tokens})
