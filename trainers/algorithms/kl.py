"""KL(pi || ref) from samples of pi, per token (Schulman, "Approximating KL divergence", 2020), and its coefficient.

`logp_N` is the current policy's (with gradient), `ref_logp_N` the reference's; the results have shape N.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rollenv.trainers.algorithms.losses import MAX_LOG_RATIO


def k1(logp_N: Tensor, ref_logp_N: Tensor) -> Tensor:
    """log pi - log ref: unbiased, can be negative."""
    return logp_N - ref_logp_N


def k2(logp_N: Tensor, ref_logp_N: Tensor) -> Tensor:
    """k1^2 / 2: biased, never negative; its gradient is that of the KL divergence."""
    return (logp_N - ref_logp_N).square() / 2


def k3(logp_N: Tensor, ref_logp_N: Tensor) -> Tensor:
    """exp(-k1) - 1 + k1: unbiased, never negative (the one in GRPO, arXiv 2402.03300)."""
    k1_N = (logp_N - ref_logp_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.exp(-k1_N) - 1 + k1_N


KL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
"""By the name used in `algo.kl_estimator`."""


def adapted(coefficient: float, kl: float, target: float, episodes: int, horizon: int = 10_000) -> float:
    """The coefficient after `episodes` whose divergence was `kl`: larger where that is above `target`.

    coefficient * (1 + clip(kl / target - 1, -0.2, 0.2) * episodes / horizon) (Ziegler et al., arXiv 1909.08593).
    """
    error = min(0.2, max(-0.2, kl / target - 1))
    return coefficient * (1 + error * episodes / horizon)
