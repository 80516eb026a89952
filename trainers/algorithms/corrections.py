"""Corrections for the gap between the policy that sampled (mu) and the proximal policy (pi_old).

rho = pi_old / mu per token. A weight multiplies the token's loss, a rejection says which tokens train at all: the two
are chosen apart, and neither has a gradient. Weights of the aggregation are made before, so that what is rejected keeps
its place in the denominator.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rollenv.trainers.algorithms.losses import MAX_LOG_RATIO, ratio
from rollenv.trainers.algorithms.sequences import sequence_mean, sequence_sum


def tis(old_logp_N: Tensor, mu_logp_N: Tensor, cap: float = 2.0) -> Tensor:
    """sg(min(rho, cap)) per token: truncated importance sampling (Yao et al., "Your efficient RL framework secretly
    brings you off-policy RL training", 2025)."""
    return ratio(old_logp_N, mu_logp_N).clamp(max=cap).detach()


def tis_sequence(old_logp_N: Tensor, mu_logp_N: Tensor, unit_N: Tensor, cap: float = 2.0) -> Tensor:
    """sg(min(product of rho over the sequence, cap)) for each of its tokens."""
    log_rho_N = sequence_sum((old_logp_N - mu_logp_N).detach(), unit_N)
    return torch.exp(log_rho_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)).clamp(max=cap)


def icepop(old_logp_N: Tensor, mu_logp_N: Tensor, low: float = 0.5, high: float = 5.0) -> Tensor:
    """rho where low <= rho <= high, else 0: IcePop (Ling team, "Every step evolves", arXiv 2510.18855)."""
    rho_N = ratio(old_logp_N, mu_logp_N).detach()
    return torch.where((rho_N >= low) & (rho_N <= high), rho_N, torch.zeros_like(rho_N))


def geometric_mask(
    old_logp_N: Tensor, mu_logp_N: Tensor, unit_N: Tensor, low: float = 0.999, high: float = 1.001
) -> Tensor:
    """True for the tokens of sequences with low <= exp(mean log rho) <= high (trust region masking, arXiv 2512.23075).

    0.99 to 1.01 is the wider band in use.
    """
    mean_N = sequence_mean((old_logp_N - mu_logp_N).detach().double(), unit_N)
    mean_N = torch.exp(mean_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    return (mean_N >= low) & (mean_N <= high)


def opsm(logp_N: Tensor, old_logp_N: Tensor, advantages_N: Tensor, unit_N: Tensor, threshold: float = 1e-4) -> Tensor:
    """False for the tokens with A < 0 of sequences with mean(log pi_old - log pi) > threshold: off-policy sequence
    masking (DeepSeek-V3.2, arXiv 2512.02556).

    The report takes what the sampler returned for pi_old, which counts its mismatch and its age.
    """
    drift_N = sequence_mean((old_logp_N - logp_N).detach(), unit_N)
    return ~((advantages_N < 0) & (drift_N > threshold))


def mismatch(old_logp_N: Tensor, mu_logp_N: Tensor) -> dict[str, float]:
    """How far sampler and trainer are apart: mean and 99th percentile of |log rho|, and KL(mu || pi_old) by k3."""
    if old_logp_N.numel() == 0:
        return {"mismatch_mean": 0.0, "mismatch_p99": 0.0, "mismatch_kl": 0.0}
    log_rho_N = (old_logp_N - mu_logp_N).float()
    return {
        "mismatch_mean": float(log_rho_N.abs().mean()),
        # not torch.quantile, which takes no more than 2^24 tokens
        "mismatch_p99": float(np.quantile(log_rho_N.abs().cpu().numpy(), 0.99)),
        "mismatch_kl": float((torch.expm1(log_rho_N.clamp(-20, 20)) - log_rho_N).mean()),
    }
