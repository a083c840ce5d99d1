"""SparseAdam for tables with sparse gradients, AdamW, which refuses such gradients, for the rest: as one optimiser."""

import torch


class SparseAdamAndAdamW:
    """`named_parameters` may hold tables, whose names begin with one of `tables`, other parameters, or both."""

    def __init__(self, named_parameters, *tables: str) -> None:
        sparse = [parameter for name, parameter in named_parameters if name.startswith(tables)]
        others = [parameter for name, parameter in named_parameters if not name.startswith(tables)]
        self.optimizers: list[torch.optim.Optimizer] = []
        if sparse:
            self.optimizers.append(torch.optim.SparseAdam(sparse, lr=1e-3))
        if others:
            self.optimizers.append(torch.optim.AdamW(others, lr=1e-3))

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)
