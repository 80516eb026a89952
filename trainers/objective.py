"""What a token's loss is under the settings of `AlgoConfig`: loss, correction, rejection, KL and entropy put together.

Blind to worlds and to batches: everything is a tensor with an entry per trained token (`_N`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rollenv.config.algo import AlgoConfig
from rollenv.trainers.algorithms import corrections, losses
from rollenv.trainers.algorithms.kl import KL
from rollenv.trainers.algorithms.proximal import log_linear


@dataclass(slots=True)
class Stream:
    """What a loss looks at: log-probabilities of current policy (`logp_N`, with gradient, and `entropy_N`), sampler
    (`mu_logp_N`), proximal policy (`old_logp_N`; None where it is the current policy) and reference (None without KL),
    advantages, and the sequence of each token (`unit_N`, None where no sequence is looked at)."""

    logp_N: Tensor
    entropy_N: Tensor
    mu_logp_N: Tensor
    advantages_N: Tensor
    versions_N: Tensor
    old_logp_N: Tensor | None = None
    ref_logp_N: Tensor | None = None
    unit_N: Tensor | None = None


@dataclass(slots=True)
class TokenLoss:
    """Loss of each token; which ones were clipped, and which ones a rejection or a weight of 0 kept from training; how
    far the trainer is from the sampler, log pi - log mu; the KL estimate where there is a reference."""

    loss_N: Tensor
    clipped_N: Tensor
    masked_N: Tensor
    mismatch_N: Tensor
    kl_N: Tensor | None = None


def token_loss(stream: Stream, algo: AlgoConfig, version: int, kl_coef: float) -> TokenLoss:
    """The loss of each token, before it is aggregated.

    Args:
        version: that of the weights before the step's first update.
        kl_coef: the KL coefficient as it stands.
    """
    old_N = proximal(stream, algo, version)
    loss_N, clipped_N = policy_loss(stream, old_N, algo)
    weight_N = correction(stream, old_N, algo)
    masked_N = torch.zeros_like(clipped_N)
    if weight_N is not None:
        loss_N = loss_N * weight_N
        masked_N = weight_N == 0
    kl_N = None
    if stream.ref_logp_N is not None:
        kl_N = KL[algo.kl_estimator](stream.logp_N, stream.ref_logp_N)
        if algo.kl_in == "loss":
            loss_N = loss_N + kl_coef * kl_N
    if algo.entropy_coef:
        loss_N = loss_N - algo.entropy_coef * stream.entropy_N
    kept_N = accepted(stream, old_N, algo)
    if kept_N is not None:
        # Not only the policy's part: what is rejected does not train at all.
        loss_N = torch.where(kept_N, loss_N, torch.zeros_like(loss_N))
        masked_N = masked_N | ~kept_N
    return TokenLoss(loss_N, clipped_N, masked_N, recomputed(stream) - stream.mu_logp_N, kl_N)


def proximal(stream: Stream, algo: AlgoConfig, version: int) -> Tensor:
    """log pi_old of each token, without gradient."""
    if algo.proximal == "sampler":
        return stream.mu_logp_N
    if algo.proximal == "interpolate":
        return log_linear(stream.logp_N, stream.mu_logp_N, stream.versions_N, version)
    return recomputed(stream)


def recomputed(stream: Stream) -> Tensor:
    """What the trainer itself makes of each token: before the step's first update where that was computed, else now."""
    return stream.logp_N.detach() if stream.old_logp_N is None else stream.old_logp_N


def policy_loss(stream: Stream, old_N: Tensor, algo: AlgoConfig) -> tuple[Tensor, Tensor]:
    """The loss that `algo.loss` names, and which tokens it clipped."""
    logp_N, advantages_N, bounds = stream.logp_N, stream.advantages_N, (algo.clip_low, algo.clip_high)
    match algo.loss:
        case "ppo_clip":
            return losses.ppo_clip(logp_N, old_N, advantages_N, *bounds, algo.dual_clip)
        case "decoupled_ppo":
            return losses.decoupled_ppo(logp_N, old_N, stream.mu_logp_N, advantages_N, *bounds, algo.dual_clip)
        case "gspo":
            return losses.gspo(logp_N, old_N, advantages_N, _units(stream), *bounds, algo.dual_clip)
        case "cispo":
            return losses.cispo(logp_N, old_N, advantages_N, *bounds)
        case "topr":
            return losses.topr(logp_N, stream.mu_logp_N, advantages_N, _units(stream))
        case "kimi":
            return losses.kimi(logp_N, old_N, advantages_N, algo.tau), _none(logp_N)
        case "plain":
            return losses.plain(logp_N, advantages_N), _none(logp_N)


def correction(stream: Stream, old_N: Tensor, algo: AlgoConfig) -> Tensor | None:
    """The weight that `algo.correction` names; None for none."""
    match algo.correction:
        case "tis":
            return corrections.tis(old_N, stream.mu_logp_N, algo.tis_cap)
        case "tis_sequence":
            return corrections.tis_sequence(old_N, stream.mu_logp_N, _units(stream), algo.tis_cap)
        case "icepop":
            return corrections.icepop(old_N, stream.mu_logp_N, algo.icepop_low, algo.icepop_high)
        case "none":
            return None


def accepted(stream: Stream, old_N: Tensor, algo: AlgoConfig) -> Tensor | None:
    """Which tokens `algo.rejection` lets train; None for all."""
    match algo.rejection:
        case "geometric":
            bounds = (algo.reject_low, algo.reject_high)
            return corrections.geometric_mask(old_N, stream.mu_logp_N, _units(stream), *bounds)
        case "opsm":
            parts = (stream.logp_N, stream.mu_logp_N, stream.advantages_N, _units(stream))
            return corrections.opsm(*parts, algo.opsm_threshold)
        case "none":
            return None


def _units(stream: Stream) -> Tensor:
    assert stream.unit_N is not None
    return stream.unit_N


def _none(like_N: Tensor) -> Tensor:
    return torch.zeros_like(like_N, dtype=torch.bool)
