"""Policy losses: pure functions per trained token.

Shapes: everything ends in `_N`, one entry per trained token of a minibatch. `logp` is the current policy's
log-probability (with gradient), `old_logp` the proximal policy's, `advantages` the token's advantage. The result is
the loss per token, to be weighted by an aggregation.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log ratios are clamped to +-20 before they are exponentiated."""


def ratio(logp_N: Tensor, old_logp_N: Tensor) -> Tensor:
    """exp(logp - old_logp), the exponent clamped."""
    return torch.exp((logp_N - old_logp_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def ppo_clip(
    logp_N: Tensor,
    old_logp_N: Tensor,
    advantages_N: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), and which tokens were clipped (PPO, arXiv 1707.06347).

    `clip_high` above `clip_low` is DAPO's clip-higher (arXiv 2503.14476). With `dual_clip` c the loss of tokens with
    A < 0 is at most -c A (arXiv 1912.09729).
    """
    r_N = ratio(logp_N, old_logp_N)
    plain_N = -r_N * advantages_N
    clipped_N = -r_N.clamp(1 - clip_low, 1 + clip_high) * advantages_N
    loss_N = torch.maximum(plain_N, clipped_N)
    is_clipped_N = clipped_N > plain_N
    if dual_clip is not None:
        bound_N = -dual_clip * advantages_N
        beyond_N = (advantages_N < 0) & (loss_N > bound_N)
        loss_N = torch.where(beyond_N, bound_N, loss_N)
        is_clipped_N = is_clipped_N | beyond_N
    return loss_N, is_clipped_N


def plain(logp_N: Tensor, advantages_N: Tensor) -> Tensor:
    """-A log pi: REINFORCE's loss."""
    return -advantages_N * logp_N
