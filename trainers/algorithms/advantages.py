"""Group-relative advantages: pure functions from what a group earned to an advantage per episode or per turn.

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
"""Those per episode, by the name used in `algo.advantage`; `gigpo` adds `gigpo_steps` to `grpo`."""
