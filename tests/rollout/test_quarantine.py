"""Quarantine: who is taken out, who is not, and that a source leaves them out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollout.fakes import ended, failed

from rollenv.errors import RollenvError
from rollenv.rollout.episode import EpisodeRequest
from rollenv.rollout.groups import Group, GroupRequest
from rollenv.rollout.quarantine import Quarantine, Quarantined
from rollenv.rollout.sources import Curriculum, InOrder
from rollenv.seeding import TaskOrder
from rollenv.trajectory import Failure

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


def sources() -> Any:
    return st.sampled_from([InOrder, lambda order: Curriculum(order, 5)])


@given(sources(), st.sets(st.sampled_from(TASKS), max_size=4), st.integers(0, 9))
def test_a_source_gives_what_it_would_without_those_in_quarantine(make: Any, out: set[str], seed: int) -> None:
    quarantine = Quarantine(1)
    source = Quarantined(make(TaskOrder(TASKS, seed)), quarantine, TASKS)
    plain = make(TaskOrder(TASKS, seed))
    assert [source.draw() for _ in range(3)] == [plain.draw() for _ in range(3)]
    for task in out:
        quarantine.failed(task)
    given = [source.draw() for _ in range(20)]
    expected = [draw for draw in (plain.draw() for _ in range(200)) if draw.task not in out]
    assert given == expected[:20]


@given(sources(), st.lists(st.sampled_from(TASKS), max_size=6), st.integers(0, 9))
def test_a_source_continues_where_it_was(make: Any, failures: list[str], cut: int) -> None:
    def fresh() -> tuple[Quarantine, Quarantined]:
        quarantine = Quarantine(2)
        return quarantine, Quarantined(make(TaskOrder(TASKS, 3)), quarantine, TASKS)

    quarantine, source = fresh()
    for task in failures[:-3]:
        quarantine.failed(task)
    for _ in range(cut):
        draw = source.draw()
        source.report(draw, len(draw.task), 5)
    _, again = fresh()
    again.load_state_dict(source.state_dict())
    assert [again.draw() for _ in range(9)] == [source.draw() for _ in range(9)]
    assert again.state_dict() == source.state_dict()


def test_nothing_left_to_play_is_said() -> None:
    quarantine = Quarantine(1)
    source = Quarantined(InOrder(TaskOrder(TASKS, 0)), quarantine, TASKS)
    for task in TASKS:
        quarantine.failed(task)
    with pytest.raises(RollenvError, match=r"all 5 tasks are in quarantine.*quarantine_after=none"):
        source.draw()


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
