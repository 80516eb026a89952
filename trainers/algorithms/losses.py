"""Policy losses: pure functions per trained token.

Shapes: everything ends in `_N`, one entry per trained token of a minibatch. `logp` is the current policy's
log-probability (with gradient), `old_logp` the proximal policy's, `mu_logp` the sampler's, `advantages` the token's
advantage, `unit` the number of the sequence that it belongs to. The result is the loss per token, to be weighted by an
aggregation, and where there is a clip which tokens it took the gradient from.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rollenv.trainers.algorithms.sequences import sequence_mean, sequence_sum

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
    return _clipped(ratio(logp_N, old_logp_N), advantages_N, clip_low, clip_high, dual_clip)


def decoupled_ppo(
    logp_N: Tensor,
    old_logp_N: Tensor,
    mu_logp_N: Tensor,
    advantages_N: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """sg(pi_old / mu) times PPO's clipped loss (AReaL, arXiv 2505.24298).

    The trust region lies around a recent policy, the importance weight makes up for an old sampler: stale data trains
    without being clipped for its age.
    """
    loss_N, clipped_N = ppo_clip(logp_N, old_logp_N, advantages_N, clip_low, clip_high, dual_clip)
    return ratio(old_logp_N, mu_logp_N).detach() * loss_N, clipped_N


def gspo(
    logp_N: Tensor,
    old_logp_N: Tensor,
    advantages_N: Tensor,
    unit_N: Tensor,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """PPO's clipped loss of s = exp(mean log r) over each sequence (GSPO, arXiv 2507.18071).

    Every token of a sequence has the value s; its gradient goes through its own log-probability, as
    log s = log pi - sg(log pi) + sg(mean log r), so that tokens of one sequence may have advantages of their own.
    """
    mean_N = sequence_mean(logp_N.detach() - old_logp_N, unit_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return _clipped(torch.exp(logp_N - logp_N.detach() + mean_N), advantages_N, clip_low, clip_high, dual_clip)


def cispo(
    logp_N: Tensor, old_logp_N: Tensor, advantages_N: Tensor, clip_low: float = 1.0, clip_high: float = 4.0
) -> tuple[Tensor, Tensor]:
    """-sg(clip(r, 1 - clip_low, 1 + clip_high)) A log pi (CISPO, arXiv 2506.13585).

    The weight is clipped, the gradient stays: no token falls out. Those whose weight was clipped are marked.
    """
    r_N = ratio(logp_N, old_logp_N).detach()
    weight_N = r_N.clamp(1 - clip_low, 1 + clip_high)
    return -weight_N * advantages_N * logp_N, weight_N != r_N


def topr(logp_N: Tensor, mu_logp_N: Tensor, returns_N: Tensor, unit_N: Tensor) -> tuple[Tensor, Tensor]:
    """-R log pi where R >= 0, else -sg(clip(pi / mu, 0, 1)) R log pi, the ratio that of the whole trajectory (TOPR,
    arXiv 2503.14286).

    `returns_N` is R, less a baseline, for every token. What is bad is pushed away only as far as the policy would
    still do it. Tokens whose ratio was above 1 are marked.
    """
    log_ratio_N = sequence_sum((logp_N - mu_logp_N).detach(), unit_N)
    ratio_N = torch.exp(log_ratio_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    bad_N = returns_N < 0
    weight_N = torch.where(bad_N, ratio_N.clamp(0, 1), torch.ones_like(ratio_N))
    return -weight_N * returns_N * logp_N, bad_N & (ratio_N > 1)


def kimi(logp_N: Tensor, old_logp_N: Tensor, advantages_N: Tensor, tau: float = 0.1) -> Tensor:
    """-A log pi + tau/2 (log pi - log pi_old)^2: policy mirror descent (Kimi k1.5, arXiv 2501.12599).

    The report gives no value for tau.
    """
    return -advantages_N * logp_N + tau / 2 * (logp_N - old_logp_N).square()


def plain(logp_N: Tensor, advantages_N: Tensor) -> Tensor:
    """-A log pi: REINFORCE's loss (Williams, 1992)."""
    return -advantages_N * logp_N


def value_loss(
    values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, clip: float | None = 0.2
) -> tuple[Tensor, Tensor]:
    """1/2 max((V - R)^2, (V_old + clip(V - V_old, -clip, clip) - R)^2) per token, and which were clipped (PPO's value
    loss, arXiv 1707.06347 and 2005.12729)."""
    plain_N = (values_N - returns_N).square()
    if clip is None:
        return plain_N / 2, torch.zeros_like(plain_N, dtype=torch.bool)
    near_N = old_values_N + (values_N - old_values_N).clamp(-clip, clip)
    clipped_N = (near_N - returns_N).square()
    return torch.maximum(plain_N, clipped_N) / 2, clipped_N > plain_N


def _clipped(
    r_N: Tensor, advantages_N: Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> tuple[Tensor, Tensor]:
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
