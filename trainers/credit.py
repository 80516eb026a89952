"""Who gets the credit: advantages that need values, divergences or the whole batch, token by token.

Pure functions over token streams; those that returns alone decide are in `data.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rollenv.config.algo import AlgoConfig
from rollenv.rollout.groups import Group
from rollenv.trainers.algorithms.advantages import most_spread
from rollenv.trainers.algorithms.gae import bilevel_gae, gae, rewards_to_go, turn_gae
from rollenv.trainers.data import TrainTokens, common_costs, trained_return, turn_advantages


@dataclass(slots=True)
class Credit:
    """Advantage of each token, and what a critic should have said before it (None without one)."""

    advantages_N: Tensor
    returns_N: Tensor | None = None


def comes_late(algo: AlgoConfig) -> bool:
    """Whether advantages can only be known after a forward pass over the whole batch, or from all of it."""
    by_token = algo.needs_critic or algo.advantage.startswith("reinforce_pp")
    return by_token or algo.whiten or (algo.kl_in == "reward" and algo.kl_coef > 0)


def looks_at_groups(algo: AlgoConfig) -> bool:
    """Whether `credit` looks at the groups and not only at their tokens."""
    costs = algo.kl_in == "reward" and algo.kl_coef > 0
    return algo.advantage == "reinforce_pp_baseline" or (costs and not algo.needs_critic)


def credit(
    groups: Sequence[Group],
    tokens: TrainTokens,
    algo: AlgoConfig,
    batch_std: float = 1.0,
    costs_N: Tensor | None = None,
    values_N: Tensor | None = None,
    first_sequence: int = 0,
) -> Credit:
    """The advantages of the tokens of `groups` (before they are whitened).

    Args:
        tokens: all of the groups' trained tokens, episode after episode, these numbered from `first_sequence`.
        batch_std: standard deviation of the batch's returns (`liteppo`).
        costs_N: subtracted from each token's reward (a KL penalty).
        values_N: a critic's, of the state before each token.
    """
    rewards_N = tokens.rewards_N if costs_N is None else tokens.rewards_N - costs_N
    if values_N is not None:
        return _by_values(tokens, algo, rewards_N, values_N)
    if algo.advantage.startswith("reinforce_pp"):
        baselines = _baselines(groups, algo) if algo.advantage.endswith("baseline") else None
        return Credit(_by_batch(tokens, algo, rewards_N, baselines, first_sequence))
    if costs_N is None:
        return Credit(tokens.advantages_N)
    return Credit(_by_group(groups, tokens, algo, batch_std, costs_N, first_sequence))


def _by_values(tokens: TrainTokens, algo: AlgoConfig, rewards_N: Tensor, values_N: Tensor) -> Credit:
    advantages, returns = [], []
    for begin, end in _episodes(tokens):
        rewards_T, values_T, turn_T = rewards_N[begin:end], values_N[begin:end], tokens.turn_N[begin:end]
        if algo.advantage == "gae_turn":
            advantages_T, returns_T = turn_gae(rewards_T, values_T, turn_T, algo.gamma, algo.lam)
        else:
            if algo.advantage == "gae":
                advantages_T = gae(rewards_T, values_T, algo.gamma_token, algo.lam)
            else:
                advantages_T = bilevel_gae(rewards_T, values_T, turn_T, algo.gamma, algo.gamma_token, algo.lam)
            returns_T = advantages_T + values_T
        advantages.append(advantages_T)
        returns.append(returns_T)
    return Credit(_joined(advantages, values_N), _joined(returns, values_N))


def _by_batch(
    tokens: TrainTokens, algo: AlgoConfig, rewards_N: Tensor, baselines: Sequence[float | None] | None, first: int
) -> Tensor:
    """REINFORCE++: rewards to go; a baseline is taken off the reward of the episode's last token."""
    rewards_N, parts = rewards_N.clone(), []
    for begin, end in _episodes(tokens):
        if baselines is not None:
            baseline = baselines[int(tokens.sequence_N[begin]) - first]
            if baseline is None:
                parts.append(torch.zeros_like(rewards_N[begin:end]))
                continue
            rewards_N[end - 1] -= baseline
        parts.append(rewards_to_go(rewards_N[begin:end], algo.gamma_token))
    return _joined(parts, rewards_N)


def _baselines(groups: Sequence[Group], algo: AlgoConfig) -> list[float | None]:
    """Per episode the mean return of its group, None for a group of one: it has nothing to be compared with."""
    baselines: list[float | None] = []
    for group in groups:
        returns = [trained_return(t, algo) for t in group.trainable]
        baselines += [sum(returns) / len(returns) if len(returns) > 1 else None] * len(returns)
    return baselines


def _by_group(
    groups: Sequence[Group], tokens: TrainTokens, algo: AlgoConfig, batch_std: float, costs_N: Tensor, first: int
) -> Tensor:
    """The advantages of `turn_advantages`, after each turn has paid what its tokens cost."""
    episodes = [t for group in groups for t in group.trainable]
    costs = [[0.0] * len(t.turns) for t in episodes]
    places = list(zip((tokens.sequence_N - first).tolist(), tokens.turn_N.tolist(), strict=True))
    for (sequence, turn), cost in zip(places, costs_N.tolist(), strict=True):
        costs[sequence][turn] += cost
    advantages: list[list[float]] = []
    for group in groups:
        size = len(group.trainable)
        own = common_costs(group.trainable, costs[len(advantages) : len(advantages) + size])
        advantages += turn_advantages(group.trainable, algo, batch_std, own)
    return torch.tensor([advantages[s][t] for s, t in places], dtype=torch.float32, device=costs_N.device)


def _episodes(tokens: TrainTokens) -> list[tuple[int, int]]:
    """Begin and end of each episode's tokens."""
    _, counts = torch.unique_consecutive(tokens.sequence_N, return_counts=True)
    ends = counts.cumsum(0).tolist()
    return list(zip([0, *ends], ends, strict=False))


def _joined(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat(list(parts)) if parts else torch.zeros_like(like)


def return_std(groups: Sequence[Group], algo: AlgoConfig) -> float:
    """Standard deviation of the returns of a batch's episodes; 0 for fewer than two."""
    returns = [trained_return(t, algo) for group in groups for t in group.trainable]
    return float(torch.tensor(returns, dtype=torch.float64).std()) if len(returns) > 1 else 0.0


def chosen(groups: Sequence[Group], algo_of: Callable[[str], AlgoConfig]) -> list[Group]:
    """The groups that train, in their order: of those with the same algorithm all, or the `algo.train_share` of them
    whose returns are spread most.

    Args:
        algo_of: the algorithm of an environment.
    """
    kept: set[int] = set()
    by_algo: dict[AlgoConfig, list[Group]] = {}
    for group in groups:
        by_algo.setdefault(algo_of(group.request.env), []).append(group)
    for algo, own in by_algo.items():
        returns = [[trained_return(t, algo) for t in group.trainable] for group in own]
        places = most_spread(returns, algo.train_share) if algo.train_share < 1 else range(len(own))
        kept |= {own[i].request.index for i in places}
    return [group for group in groups if group.request.index in kept]
