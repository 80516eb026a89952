"""Optimizers and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch

from rollenv.trainers.policy import whole

Schedule = Literal["constant", "linear", "cosine"]


def adamw(
    parameters: Iterable[tuple[str, torch.nn.Parameter]],
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> torch.optim.AdamW:
    """AdamW (arXiv 1711.05101); vectors (norms, biases) are not decayed."""
    decayed, plain = [], []
    for _, parameter in parameters:
        if parameter.requires_grad:
            (decayed if parameter.ndim > 1 else plain).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps)


class Muon:
    """Muon (Jordan et al., 2024; torch.optim.Muon) for the matrices inside the layers, AdamW for everything else.

    The update of a matrix is scaled to the root mean square of AdamW's, so one learning rate serves both. A small
    model learned to read WebShop's pages in fewer episodes with it than with AdamW alone.
    """

    def __init__(self, parameters: Iterable[tuple[str, torch.nn.Parameter]], lr: float, weight_decay: float) -> None:
        inside, rest = [], []
        for name, parameter in parameters:
            if parameter.requires_grad:
                is_matrix = parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
                (inside if is_matrix else rest).append((name, parameter))
        matrices = [parameter for _, parameter in inside]
        self._parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
            adamw(rest, lr, (0.9, 0.95), 1e-8, 0.0),
        ]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of both, whose learning rates may be set."""
        return [group for part in self._parts for group in part.param_groups]

    def step(self) -> None:
        """One update."""
        for part in self._parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients."""
        for part in self._parts:
            part.zero_grad(set_to_none=set_to_none)


def clip_gradients(parameters: Iterable[torch.nn.Parameter], most: float) -> float:
    """Scales gradients down to the norm `most`; returns the norm before, which is not finite if one of them is not.
    Where they are in shards it is that of all, and all ranks have to ask together."""
    return float(whole(torch.nn.utils.clip_grad_norm_(list(parameters), most)))


def lr_factor(step: int, total: int, schedule: Schedule, warmup: int, floor: float = 0.1) -> float:
    """What the learning rate is multiplied by at `step` (from 0) of `total`: a linear warm-up, then the schedule
    down to `floor`."""
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    if schedule == "linear":
        return 1.0 - (1.0 - floor) * done
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * done))
