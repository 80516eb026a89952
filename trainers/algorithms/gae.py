"""Advantages from values: generalised advantage estimation over model tokens, over turns, over both, and from branches.

Shapes: `_T` has an entry for each of the T model tokens of one episode in order (observation tokens are not among
them: the next value is that of the next model token, across the observation in between); `_K` for each of its K turns.
`turn_T` says which turn a token belongs to and never falls. A value is that of the state before the token. Everything
is computed in float64; results have the dtype of the values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

EPSILON = 1e-8


def gae(rewards_T: Tensor, values_T: Tensor, gamma: float = 1.0, lam: float = 1.0) -> Tensor:
    """A_t = delta_t + gamma lam A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t (arXiv 1506.02438), shape T.

    An episode's end is worth 0. The returns that a critic learns are A + V.
    """
    following, advantage, advantages = 0.0, 0.0, []
    for reward, value in zip(reversed(rewards_T.tolist()), reversed(values_T.tolist()), strict=True):
        advantage = reward + gamma * following - value + gamma * lam * advantage
        advantages.append(advantage)
        following = value
    return torch.tensor(advantages[::-1], dtype=values_T.dtype, device=values_T.device)


def turn_gae(
    rewards_T: Tensor, values_T: Tensor, turn_T: Tensor, gamma: float = 0.95, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """GAE over turns: a turn is one action, its value that of its first token's state.

    Returns:
        advantages_T, the turn's for each of its tokens, and returns_T, what V should be at every token of it: A + V of
        the turn.
    """
    first_K, _, place_T = _turns(turn_T)
    values_K = values_T[first_K]
    rewards_K = torch.zeros_like(values_K).index_add(0, place_T, rewards_T.to(values_K.dtype))
    advantages_K = gae(rewards_K, values_K, gamma, lam)
    return advantages_K[place_T], (advantages_K + values_K)[place_T]


def bilevel_gae(
    rewards_T: Tensor,
    values_T: Tensor,
    turn_T: Tensor,
    gamma_turn: float = 0.95,
    gamma_token: float = 1.0,
    lam: float = 1.0,
) -> Tensor:
    """Bi-level GAE (VAGEN, arXiv 2510.16907), shape T.

    Over turns first, from the value at each turn's last token e_k: delta_k = r_k + gamma_turn V(e_{k+1}) - V(e_k),
    A_k = delta_k + gamma_turn lam A_{k+1}, where r_k is what e_k is rewarded with. Then GAE inside each turn, whose
    last token is rewarded with A_k + V(e_k) and the others with what is their own: the cost of a KL penalty.
    Turns end where `turn_T` says, not where a reward is: a turn without reward is a turn.
    """
    _, last_K, _ = _turns(turn_T)
    rewards_T, ends_K = rewards_T.to(values_T.dtype), values_T[last_K]
    targets_K = gae(rewards_T[last_K], ends_K, gamma_turn, lam) + ends_K
    advantages_T = torch.empty_like(values_T)
    begin = 0
    for k, end in enumerate((last_K + 1).tolist()):
        inside = rewards_T[begin:end].clone()
        inside[-1] = targets_K[k]
        advantages_T[begin:end] = gae(inside, values_T[begin:end], gamma_token, lam)
        begin = end
    return advantages_T


def branch_values(branch_returns: Sequence[Sequence[float]]) -> list[float | None]:
    """V of the state before each turn: the mean return of the K branches played from there (VinePPO,
    arXiv 2410.01679; K = 9), None where none were."""
    return [sum(returns) / len(returns) if returns else None for returns in branch_returns]


def vine(rewards: Sequence[float], values: Sequence[float | None], gamma: float = 1.0) -> list[float]:
    """A_k = r_k + gamma V(s_{k+1}) - V(s_k) per turn, V from `branch_values`, 0 after the last (VinePPO).

    Where only some states are valued, the turns from one of them to the next are one action: each has
    sum over i < n of gamma^i r_{k+i} + gamma^n V(s_{k+n}) - V(s_k). Turns before the first valued state have 0.
    """
    advantages, begin = [0.0] * len(rewards), None
    for end, value in enumerate([*values, 0.0]):
        if value is None:
            continue
        if begin is not None:
            earned = sum(gamma**i * reward for i, reward in enumerate(rewards[begin:end]))
            before = values[begin]
            assert before is not None
            advantages[begin:end] = [earned + gamma ** (end - begin) * value - before] * (end - begin)
        begin = end
    return advantages


def rewards_to_go(rewards_T: Tensor, gamma: float = 1.0) -> Tensor:
    """G_t = sum over k >= t of gamma^(k - t) r_k, shape T."""
    return gae(rewards_T, torch.zeros_like(rewards_T), gamma)


def whiten(values_N: Tensor) -> Tensor:
    """(A - mean) / (std + 1e-8) over the model tokens of a batch; a single token gives 0."""
    if values_N.numel() < 2:
        return torch.zeros_like(values_N)
    return (values_N - values_N.mean()) / (values_N.std() + EPSILON)


def _turns(turn_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First and last token of each turn, and the place of each token's turn among those."""
    _, place_T, counts_K = torch.unique_consecutive(turn_T, return_inverse=True, return_counts=True)
    last_K = counts_K.cumsum(0) - 1
    return last_K - counts_K + 1, last_K, place_T
