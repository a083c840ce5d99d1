"""The trained model on held-out items."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .batches import DatasetItems
from .loss import Loss, measure
from .program import Program


def evaluate(program: Program, dataset: Any, state: Mapping[str, Any], *, batch_size: int) -> str:
    """A line with the mean loss of `dataset` and, for class scores [B, C] and labels [B], the accuracy."""
    model = program.build_model()
    model.load_state_dict(state)
    model.eval()
    source = DatasetItems(program, dataset, torch.device("cpu"))
    total, correct, labelled = 0.0, 0, 0
    count = 0.0
    with torch.no_grad():
        for start in range(0, len(dataset), batch_size):
            batch = source.load(range(start, min(start + batch_size, len(dataset))))
            outputs = model.run(batch.inputs)
            loss: Loss = measure(program.hooks, outputs, batch.targets, samples=batch.samples)
            total += loss.value
            count += loss.count
            if _are_scores(outputs, batch.targets):
                correct += int((outputs.argmax(1) == batch.targets).sum())
                labelled += batch.samples
    line = f"eval: loss {total / count if count else 0.0:.6g} on {len(dataset)} items"
    return f"{line}, accuracy {correct / labelled:.4f}" if labelled else line


def _are_scores(outputs: Any, targets: Any) -> bool:
    return (
        isinstance(outputs, Tensor)
        and outputs.is_floating_point()
        and outputs.dim() == 2
        and isinstance(targets, Tensor)
        and targets.dtype == torch.int64
        and targets.shape == outputs.shape[:1]
    )
