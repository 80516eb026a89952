"""Which finished groups carry a signal for training."""

from __future__ import annotations

from typing import Literal

from rollenv.rollout.groups import Group

FilterMode = Literal["keep", "drop", "refill"]
"""What happens to a group without signal: trained anyway, left out of its batch, or replaced by another group
(dynamic sampling, DAPO, arXiv 2503.14476)."""


def has_signal(group: Group, tolerance: float = 1e-6) -> bool:
    """Whether its trainable returns differ: otherwise every group-relative advantage is zero."""
    returns = [trajectory.reward for trajectory in group.trainable]
    return len(returns) > 1 and max(returns) - min(returns) > tolerance
