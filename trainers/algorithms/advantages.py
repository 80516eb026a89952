"""Advantages from returns: pure functions from what a group earned to an advantage per episode or per turn.

`returns_G` has the G returns of the trainable episodes of one task; an advantage per episode has the same shape and
dtype.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

EPSILON = 1e-6


def grpo(returns_G: Tensor) -> Tensor:
    """(R - mean) / (std + 1e-6), std with Bessel's correction (GRPO, arXiv 2402.03300).

    A group of one gives 0: it has nothing to be compared with.
    """
    if returns_G.numel() < 2:
        return torch.zeros_like(returns_G)
    return (returns_G - returns_G.mean()) / (returns_G.std() + EPSILON)


def dr_grpo(returns_G: Tensor) -> Tensor:
    """R - mean, without the division that favours easy and hard tasks (Dr.GRPO, arXiv 2503.20783)."""
    return returns_G - returns_G.mean()


def rloo(returns_G: Tensor) -> Tensor:
    """R minus the mean of the others = G/(G-1) (R - mean) (RLOO, arXiv 2402.14740). A group of one gives 0."""
    size = returns_G.numel()
    if size < 2:
        return torch.zeros_like(returns_G)
    return (returns_G - returns_G.mean()) * (size / (size - 1))


def liteppo(returns_G: Tensor, batch_std: float) -> Tensor:
    """(R - mean of the group) / (standard deviation over the batch + 1e-6) (LitePPO, arXiv 2508.08221)."""
    return dr_grpo(returns_G) / (batch_std + EPSILON)


def raft(returns_G: Tensor) -> Tensor:
    """1 for the group's best episodes, 0 for the others (RAFT++, arXiv 2504.11343: it trains on what was rewarded).

    A group whose returns are all equal says nothing about what is better, and gives 0.
    """
    if returns_G.numel() < 2 or bool(returns_G.max() == returns_G.min()):
        return torch.zeros_like(returns_G)
    return (returns_G == returns_G.max()).to(returns_G.dtype)


def turn_returns(rewards: Sequence[Sequence[float]], gamma: float = 0.95, scale: bool = True) -> list[list[float]]:
    """R_t = sum over k >= t of gamma^(k - t) r_k against the group's other episodes at the same turn, divided by their
    standard deviation + 1e-6 with `scale`. A turn that only one episode reached gives 0.

    Args:
        rewards: per episode of the group, the reward of each turn.

    Returns:
        Per episode, the advantage of each turn.
    """
    return gigpo_steps(rewards, [range(len(episode)) for episode in rewards], gamma, scale)


def most_spread(returns: Sequence[Sequence[float]], share: float) -> list[int]:
    """Places, in order, of the `share` of groups whose returns have the largest standard deviation, one at least
    (StarPO-S, arXiv 2504.20073: 0.25)."""
    spread = [float(torch.tensor(r, dtype=torch.float64).std(correction=0)) if len(r) > 1 else 0.0 for r in returns]
    by_spread = sorted(range(len(returns)), key=lambda i: (-spread[i], i))
    return sorted(by_spread[: max(1, round(share * len(returns)))])


def gigpo_steps(
    rewards: Sequence[Sequence[float]], anchors: Sequence[Sequence[Hashable]], gamma: float = 0.95, scale: bool = True
) -> list[list[float]]:
    """The step part A_S of GiGPO (arXiv 2505.10978): what a turn earned against the group's other turns in its state.

    R_t = sum over k >= t of gamma^(k - t) r_k is compared with the mean over all turns of the group that began in the
    same anchor state (and divided by their standard deviation + 1e-6 with `scale`). A state seen once gives 0.

    Args:
        rewards: per episode of the group, the reward of each turn.
        anchors: per episode, the state in which each turn began. They are compared within this group only: a state
            is never matched across tasks.

    Returns:
        Per episode, A_S of each turn.
    """
    returns = [_discounted(episode, gamma) for episode in rewards]
    places: defaultdict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for i, episode in enumerate(anchors):
        for t, state in enumerate(episode):
            places[state].append((i, t))
    result = [[0.0] * len(episode) for episode in rewards]
    advantage = grpo if scale else dr_grpo
    for same in places.values():
        values = advantage(torch.tensor([returns[i][t] for i, t in same], dtype=torch.float64)).tolist()
        for (i, t), value in zip(same, values, strict=True):
            result[i][t] = value
    return result


def _discounted(rewards: Sequence[float], gamma: float) -> list[float]:
    total, returns = 0.0, []
    for reward in reversed(rewards):
        total = reward + gamma * total
        returns.append(total)
    return returns[::-1]


ADVANTAGES: dict[str, Callable[[Tensor], Tensor]] = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}
"""Those per episode that compare it with its group and nothing else, by the name used in `algo.advantage`."""
