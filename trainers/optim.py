"""AdamW and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch

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
