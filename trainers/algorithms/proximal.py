"""The proximal policy pi_old, where it is not computed by a forward pass."""

from __future__ import annotations

from torch import Tensor


def log_linear(logp_N: Tensor, mu_logp_N: Tensor, versions_N: Tensor, version: int) -> Tensor:
    """log pi_old ~ log mu + alpha (sg(log pi) - log mu), alpha = (version - v) / (version + 1 - v), shape N.

    By age, between the sampler of version v and the current policy, which is becoming version + 1: a token that the
    present weights sampled has pi_old = mu, an old one nearly the current policy (A-3PO, arXiv 2512.06547).

    Args:
        versions_N: version of the weights that sampled each token, at most `version`.
        version: that of the weights before the step's first update.
    """
    age_N = (version - versions_N).clamp(min=0).to(logp_N.dtype)
    return mu_logp_N + age_N / (age_N + 1) * (logp_N.detach() - mu_logp_N)
