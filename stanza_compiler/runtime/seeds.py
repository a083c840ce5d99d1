"""Seeds that depend on several numbers."""

import hashlib
import random
import sys

import torch


def seed_from(*numbers: int) -> int:
    """A 63-bit seed that differs wherever `numbers` differ and is the same on every machine."""
    digest = hashlib.sha256(repr(numbers).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def seed_everything(seed: int) -> None:
    """Seed random, torch and, where the user's code has loaded it, numpy."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
