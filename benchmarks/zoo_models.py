"""What a model of the zoo is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Model:
    """One model: its name and the text of a model file.

    The file has build_model(), which seeds torch itself, and example_inputs(batch=...), example_kwargs(batch=...) or
    both, whose defaults are the example's batch; loss_fn with example_targets(batch=...) where users train with one.
    """

    name: str
    file: str
