"""Which failed attempts are tried again, and which of them count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rollout.fakes import failed

from rollenv.rollout.episode import EpisodeRequest
from rollenv.rollout.retries import MAX_COLLATERAL, next_try, spared
from rollenv.trajectory import Failure


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 4))
def test_collateral_costs_no_attempt_up_to_a_bound(luck: list[bool], max_attempts: int) -> None:
    """`luck` says of each attempt whether it fell by another's fault (all fail)."""
    request: EpisodeRequest | None = EpisodeRequest("t", 7, 1, 2)
    own = 0
    for collateral in luck:
        if request is None:
            break
        before, trajectory = request, failed(request)
        trajectory.failure = Failure("env", "crash", "", collateral=collateral)
        free = collateral and before.collateral < MAX_COLLATERAL
        assert spared(trajectory, before) == free
        request = next_try(trajectory, before, max_attempts)
        own += not free
        assert (request is None) == (own == max_attempts)
        if request is not None:
            assert (request.attempt, request.collateral) == (own, before.collateral + free)
            assert (request.task, request.seed, request.group, request.sample) == ("t", 7, 1, 2)
