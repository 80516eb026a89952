"""Quarantine: who is taken out, who is not, and that a controller plays around them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollout.fakes import ended, failed, run

from rollenv.errors import RollenvError
from rollenv.rollout.controller import RolloutController
from rollenv.rollout.episode import EpisodeRequest
from rollenv.rollout.groups import Group, GroupRequest
from rollenv.rollout.quarantine import Quarantine
from rollenv.rollout.scheduler import Scheduler
from rollenv.seeding import TaskOrder
from rollenv.trajectory import Failure, Trajectory

TASKS = [f"t{i}" for i in range(5)]


@given(st.lists(st.sampled_from(TASKS), max_size=40), st.integers(1, 5), st.randoms())
def test_what_is_out_follows_from_the_counts_in_any_order(failures: list[str], after: int, draw: Any) -> None:
    quarantine, again = Quarantine(after), Quarantine(after)
    for task in failures:
        quarantine.failed(task)
    draw.shuffle(failures)
    news = [task for task in failures if again.failed(task)]
    expected = {task for task, count in Counter(failures).items() if count >= after}
    assert set(quarantine.tasks) == set(again.tasks) == expected == set(news)
    assert len(news) == len(expected) == len(quarantine)
    restored = Quarantine(after)
    restored.load_state_dict(quarantine.state_dict())
    assert restored.tasks == quarantine.tasks
    assert restored.state_dict() == quarantine.state_dict()


@given(st.sets(st.sampled_from(TASKS), max_size=4), st.integers(0, 30), st.integers(0, 9))
def test_the_next_free_place_is_the_first(out: set[str], place: int, seed: int) -> None:
    order, quarantine = TaskOrder(TASKS, seed), Quarantine(1)
    for task in out:
        quarantine.failed(task)
    found = quarantine.first_free(place, order.__getitem__)
    assert order[found] not in out
    assert all(order[passed] in out for passed in range(place, found))


def test_nothing_left_to_play_is_said() -> None:
    order, quarantine = TaskOrder(TASKS, 0), Quarantine(1)
    for task in TASKS:
        quarantine.failed(task)
    with pytest.raises(RollenvError, match=r"all tasks are in quarantine \(5 of them\).*quarantine_after=none"):
        quarantine.first_free(3, order.__getitem__)


def test_none_takes_nothing_out() -> None:
    quarantine = Quarantine(None)
    assert not any(quarantine.failed("a") for _ in range(100))
    assert quarantine.tasks == []
    with pytest.raises(ValueError, match="at least 1"):
        Quarantine(0)


def with_failure(failure: Failure) -> Group:
    trajectory = failed(EpisodeRequest("a", 0))
    trajectory.failure = failure
    return Group(GroupRequest(0, "a", 2, 0), [trajectory, ended(EpisodeRequest("a", 0, sample=1))])


def test_only_faults_that_may_be_the_tasks_count() -> None:
    quarantine = Quarantine(1)
    assert quarantine.book([with_failure(Failure("engine", "crash", ""))]) == []
    assert quarantine.book([with_failure(Failure("env", "crash", "", collateral=True))]) == []
    assert quarantine.book([with_failure(Failure("env", "timeout", ""))]) == ["a"]
    assert quarantine.book([with_failure(Failure("env", "timeout", ""))]) == []


def test_a_controller_plays_around_a_task_that_fails_for_good(caplog: Any) -> None:
    """Also after a resume."""
    played: list[EpisodeRequest] = []

    async def play(request: EpisodeRequest) -> Trajectory:
        played.append(request)
        return failed(request) if request.task == "t2" else ended(request, float(request.sample % 2))

    def controller() -> RolloutController:
        scheduler = Scheduler(play, 8, max_attempts=2)
        return RolloutController(scheduler, TaskOrder(TASKS, 3), 5, 2, 11, quarantine=Quarantine(2))

    async def main() -> None:
        ours = controller()
        for version in range(3):
            await ours.next_batch()
            ours.weights_updated(version + 1)
        assert ours.quarantine.tasks == ["t2"]
        theirs = controller()
        theirs.load_state_dict(ours.state_dict())
        before = len(played)
        await theirs.next_batch()
        assert "t2" not in {request.task for request in played[before:]}
        await ours.scheduler.close()
        await theirs.scheduler.close()

    run(main())
    assert sum(request.task == "t2" for request in played) == 2 * 2  # two samples, two attempts, once
    assert "task 't2' is in quarantine" in caplog.text
