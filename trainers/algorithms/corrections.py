"""Corrections for the gap between the policy that sampled (mu) and the proximal policy (pi_old).

rho = pi_old / mu per token. A correction gives a weight (without gradient) that multiplies the token's loss.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rollenv.trainers.algorithms.losses import ratio


def tis(old_logp_N: Tensor, mu_logp_N: Tensor, cap: float = 2.0) -> Tensor:
    """sg(min(rho, cap)) per token: truncated importance sampling."""
    return ratio(old_logp_N, mu_logp_N).clamp(max=cap).detach()


def mismatch(old_logp_N: Tensor, mu_logp_N: Tensor) -> dict[str, float]:
    """How far sampler and trainer are apart: mean and 99th percentile of |log rho|, and KL(mu || pi_old) by k3."""
    if old_logp_N.numel() == 0:
        return {"mismatch_mean": 0.0, "mismatch_p99": 0.0, "mismatch_kl": 0.0}
    log_rho_N = (old_logp_N - mu_logp_N).float()
    return {
        "mismatch_mean": float(log_rho_N.abs().mean()),
        "mismatch_p99": float(torch.quantile(log_rho_N.abs(), 0.99)),
        "mismatch_kl": float((torch.expm1(log_rho_N.clamp(-20, 20)) - log_rho_N).mean()),
    }
