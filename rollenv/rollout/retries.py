"""Whether a failed attempt is followed by another one. Pure functions."""

from __future__ import annotations

from dataclasses import replace

from rollenv.rollout.episode import EpisodeRequest
from rollenv.trajectory import Trajectory

MAX_COLLATERAL = 20
"""Bad luck ends somewhere: an episode that was in the way of others' faults so often is treated as faulty itself."""


def spared(trajectory: Trajectory, request: EpisodeRequest) -> bool:
    """Whether an attempt failed by another episode's fault, so that it does not count."""
    failure = trajectory.failure
    return failure is not None and failure.collateral and request.collateral < MAX_COLLATERAL


def next_try(trajectory: Trajectory, request: EpisodeRequest, max_attempts: int) -> EpisodeRequest | None:
    """What to play after the failed attempt `trajectory` of `request`; None: the episode has failed for good."""
    if spared(trajectory, request):
        return replace(request, collateral=request.collateral + 1)
    if request.attempt + 1 < max_attempts:
        return replace(request, attempt=request.attempt + 1)
    return None
