"""Which finished groups carry a signal for training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from rollenv.rollout.groups import Group
from rollenv.trajectory import Trajectory

FilterMode = Literal["keep", "drop", "refill"]
"""What happens to a group without signal: trained anyway, left out of its batch, or replaced by another group
(dynamic sampling, DAPO, arXiv 2503.14476)."""


Worth = Callable[[Trajectory], float]
"""What an episode is worth to the trainer."""


def episode_return(trajectory: Trajectory) -> float:
    """The sum of its rewards."""
    return trajectory.reward


def has_signal(group: Group, worth: Worth = episode_return, tolerance: float = 1e-6) -> bool:
    """Whether its trainable episodes differ in worth: otherwise the advantage of each in its group is zero."""
    values = [worth(trajectory) for trajectory in group.trainable]
    return len(values) > 1 and max(values) - min(values) > tolerance
