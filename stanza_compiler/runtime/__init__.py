"""What a generated program runs on: torch and itself only, copied verbatim into every program."""

from .program import Example, Hooks, Program, Segment, SharedParameter
from .train import main

__all__ = ["Example", "Hooks", "Program", "Segment", "SharedParameter", "main"]
