"""The optimisers: Muon for the matrices of the layers, AdamW for the rest.

Muon (Jordan and others 2024): the momentum of a matrix is replaced by the nearest matrix with equal singular values,
found by five Newton-Schulz steps with the coefficients (3.4445, -4.7750, 2.0315). With 2,048 tokens a step the updates
are mostly noise: a rate of 0.02 without decay let the weights grow until attention was saturated (scores with a
standard deviation of 60) and no induction head had formed after 5 million tokens; at 0.01 and a decay of 0.1 one had
formed after 2 million.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def orthogonalise(gradient: Tensor) -> Tensor:
    """Bring all singular values of each matrix of [count, rows, columns] near one."""
    x = gradient.bfloat16()
    turned = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if turned else x
    x = x / (x.float().square().sum((1, 2), keepdim=True).sqrt() + 1e-7).bfloat16()
    for _ in range(5):
        product = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * product + 2.0315 * (product @ product)) @ x
    return (x.transpose(1, 2) if turned else x).float()


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum; matrices of one size are treated together."""

    def __init__(
        self, matrices: list[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.0
    ) -> None:
        sizes: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for matrix in matrices:
            sizes.setdefault(tuple(matrix.shape), []).append(matrix)
        groups = [{"params": group} for group in sizes.values()]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every matrix by one step."""
        for group in self.param_groups:
            gradients = torch.stack([matrix.grad for matrix in group["params"]])
            state = self.state[group["params"][0]]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(gradients)
            state["momentum"].lerp_(gradients, 1 - group["momentum"])
            update = orthogonalise(gradients.lerp(state["momentum"], group["momentum"]))
            rows, columns = gradients.shape[1:]
            size = group["lr"] * max(1.0, rows / columns) ** 0.5
            for matrix, change in zip(group["params"], update, strict=True):
                matrix.mul_(1 - group["lr"] * group["decay"]).add_(change, alpha=-size)


def make_optimisers(
    network: nn.Module, muon_lr: float, adam_lr: float, decay: float
) -> list[torch.optim.Optimizer]:
    """Give Muon for the layers' matrices and AdamW for embedding and norms."""
    matrices = [
        p for name, p in network.named_parameters() if p.ndim == 2 and not name.startswith("embedding")
    ]
    rest = [p for name, p in network.named_parameters() if p.ndim != 2 or name.startswith("embedding")]
    return [
        Muon(matrices, muon_lr, decay=decay),
        torch.optim.AdamW(rest, adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]
