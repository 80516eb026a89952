"""The figures of a training step that come from its updates. `FIGURES` says what each means; it is the one place that
does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rollenv.trainers.algorithms import corrections
from rollenv.trainers.critic import explained_variance
from rollenv.trainers.data import TrainTokens

FIGURES = {
    "loss": "the policy's loss, mean over updates",
    "entropy": "entropy of the policy at the trained tokens, nats",
    "clipped_share": "share of the trained tokens whose ratio, or weight, was clipped",
    "masked_share": "share of the trained tokens that a rejection or a weight of 0 kept from training",
    "grad_norm": "norm of the policy's gradient before it is scaled down, mean over updates",
    "lr": "learning rate of the policy",
    "updates": "updates of the policy",
    "skipped_updates": "updates left out, as the gradient was not finite",
    "trained_tokens": "tokens that went through the loss, once per pass",
    "padding_share": "share of the queries of attention that are padding (nothing else is padded)",
    "offloaded_mib": "MiB that training leaves to the engines on its devices while these generate (devices.offload)",
    "mismatch_mean": "mean of |log pi - log mu|, mu the sampler, pi the policy (before the step if it is recomputed)",
    "mismatch_p99": "its 99th percentile",
    "mismatch_kl": "KL(mu || pi) between the two",
    "kl": "KL divergence to the reference, where there is one",
    "kl_coef": "its coefficient, where that is steered",
    "advantage_mean": "mean of the model tokens' advantages",
    "advantage_std": "their standard deviation",
    "advantage_min": "the lowest",
    "advantage_max": "the highest",
    "turn_tokens_mean": "sampled tokens per turn",
    "turn_tokens_max": "the longest turn",
    "episode_tokens_mean": "sampled tokens per episode",
    "episode_tokens_max": "the longest episode",
    "collapse_signs": "signs of a collapse that the step showed (health.*), 0 also when one has just been reported",
    "value_loss": "the critic's loss, mean over updates",
    "value_clipped_share": "share of its tokens whose value had moved too far to count",
    "value_mean": "mean of the critic's values before the step",
    "value_explained": "share of the variance of the returns that they explain",
    "value_grad_norm": "norm of the critic's gradient, mean over updates",
}


@dataclass(slots=True)
class Totals:
    """Sums over the tokens of a step."""

    values: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    tokens: int = 0
    mismatch: list[Tensor] = field(default_factory=list)

    def add(self, other: Totals) -> None:
        """Counts what a micro-batch has summed up."""
        for key, value in other.values.items():
            self.values[key] += value
        self.tokens += other.tokens
        self.mismatch += other.mismatch


def update_figures(totals: Totals, norms: Sequence[float], lr: float) -> dict[str, float]:
    """What the updates of a step were like."""
    tokens = max(1, totals.tokens)
    mismatch_N = torch.cat(totals.mismatch) if totals.mismatch else torch.zeros(0)
    return {
        "loss": totals.values["loss"] / max(1, len(norms)),
        "entropy": totals.values["entropy"] / tokens,
        "clipped_share": totals.values["clipped"] / tokens,
        "masked_share": totals.values["masked"] / tokens,
        "grad_norm": sum(norms) / len(norms) if norms else 0.0,
        "lr": lr,
        "updates": float(len(norms)),
        "skipped_updates": totals.values["skipped_updates"],
        "trained_tokens": float(totals.tokens),
        "padding_share": totals.values["padding"] / max(1.0, totals.values["slots"]),
        **corrections.mismatch(mismatch_N, torch.zeros_like(mismatch_N)),
    }


def token_figures(streams: Sequence[TrainTokens]) -> dict[str, float]:
    """Advantages and lengths of a batch's model tokens."""
    advantages_N = torch.cat([tokens.advantages_N for tokens in streams]) if streams else torch.zeros(0)
    if not advantages_N.numel():
        return {}
    # A turn's number never falls within an episode, and an episode's tokens are together.
    turns = torch.cat(
        [_counts(tokens.sequence_N * (int(tokens.turn_N.max()) + 2) + tokens.turn_N) for tokens in streams]
    )
    episodes = torch.cat([_counts(tokens.sequence_N) for tokens in streams])
    return {
        "advantage_mean": float(advantages_N.mean()),
        "advantage_std": float(advantages_N.std()) if advantages_N.numel() > 1 else 0.0,
        "advantage_min": float(advantages_N.min()),
        "advantage_max": float(advantages_N.max()),
        "turn_tokens_mean": float(turns.float().mean()),
        "turn_tokens_max": float(turns.max()),
        "episode_tokens_mean": float(episodes.float().mean()),
        "episode_tokens_max": float(episodes.max()),
    }


def value_figures(totals: Totals, norms: Sequence[float], values_N: Tensor, returns_N: Tensor) -> dict[str, float]:
    """How the critic did. `values_N` are those before the step."""
    return {
        "value_loss": totals.values["value_loss"] / max(1, len(norms)),
        "value_clipped_share": totals.values["value_clipped"] / max(1.0, totals.values["value_tokens"]),
        "value_mean": float(values_N.mean()) if values_N.numel() else 0.0,
        "value_explained": explained_variance(values_N, returns_N),
        "value_grad_norm": sum(norms) / len(norms) if norms else 0.0,
    }


def _counts(labels_N: Tensor) -> Tensor:
    return torch.unique_consecutive(labels_N, return_counts=True)[1]
