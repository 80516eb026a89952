"""Group-relative advantages: pure functions from the returns of a group to one advantage per episode.

`returns_G` has the G returns of the trainable episodes of one task; the result has the same shape and dtype.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

EPSILON = 1e-6


def grpo(returns_G: Tensor) -> Tensor:
    """(R - mean) / (std + 1e-6), std with Bessel's correction (GRPO, arXiv 2402.03300).

    A group of one gives 0: it has nothing to be compared with.
    """
    if returns_G.numel() < 2:
        return torch.zeros_like(returns_G)
    return (returns_G - returns_G.mean()) / (returns_G.std() + EPSILON)


def dr_grpo(returns_G: Tensor) -> Tensor:
    """R - mean, without the division that favours easy and hard tasks (Dr.GRPO, arXiv 2503.20783)."""
    return returns_G - returns_G.mean()


def rloo(returns_G: Tensor) -> Tensor:
    """R minus the mean of the others = G/(G-1) (R - mean) (RLOO, arXiv 2402.14740). A group of one gives 0."""
    size = returns_G.numel()
    if size < 2:
        return torch.zeros_like(returns_G)
    return (returns_G - returns_G.mean()) * (size / (size - 1))


ADVANTAGES: dict[str, Callable[[Tensor], Tensor]] = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}
"""By the name used in `algo.advantage`."""
