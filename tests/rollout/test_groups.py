"""Which episodes of a group count, with spares beside them; groups that are written down and read back."""

from __future__ import annotations

import json
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from rollout.fakes import ended, failed

from rollenv.rollout.groups import Group, GroupProgress, GroupRequest, Selection, planned


def progress_of(size: int, extra: int, selection: Selection) -> GroupProgress:
    return GroupProgress(GroupRequest(4, "t", size, 1, extra=extra, selection=selection))


def samples(group: Group) -> list[int]:
    return [trajectory.sample for trajectory in group.trajectories]


def end(progress: GroupProgress, *which: int) -> None:
    for sample in which:
        progress.ended(ended(progress.request.episodes()[sample]))


def lose(progress: GroupProgress, *which: int) -> None:
    for sample in which:
        progress.lost(failed(progress.request.episodes()[sample]))


def test_first_takes_those_that_end_first() -> None:
    progress = progress_of(2, 2, "first")
    end(progress, 3)
    assert not progress.complete
    end(progress, 1)
    assert progress.complete
    assert samples(progress.group()) == [1, 3]


def test_unbiased_waits_for_those_that_were_planned() -> None:
    progress = progress_of(2, 2, "unbiased")
    end(progress, 3, 2, 1)
    assert not progress.complete
    end(progress, 0)
    assert samples(progress.group()) == [0, 1]


def test_unbiased_takes_the_next_spare_for_a_failure() -> None:
    progress = progress_of(2, 2, "unbiased")
    end(progress, 3, 1)
    lose(progress, 0)
    assert not progress.complete, "spare 2 comes before spare 3, though 3 was quicker"
    end(progress, 2)
    assert samples(progress.group()) == [1, 2]


def test_a_late_episode_counts_when_it_ends_after_all_or_when_no_spare_is_left() -> None:
    progress = progress_of(2, 1, "unbiased")
    progress.late(0)
    assert progress.counting == [1, 2]
    assert not progress.straggles
    lose(progress, 2)
    assert progress.counting == [0, 1]
    assert progress.straggles
    end(progress, 0, 1)
    assert samples(progress.group()) == [0, 1]


def test_a_group_of_which_too_many_fail_holds_the_failures() -> None:
    for selection in ("first", "unbiased"):
        progress = progress_of(2, 1, selection)  # type: ignore[arg-type]
        end(progress, 1)
        lose(progress, 0, 2)
        assert progress.complete
        group = progress.group()
        assert samples(group) == [0, 1]
        assert [t.sample for t in group.trainable] == [1]


@settings(max_examples=200)
@given(st.integers(1, 4), st.integers(0, 3), st.sampled_from(["first", "unbiased"]), st.integers(0, 10**9))
def test_a_group_completes_once_under_any_order_of_events_and_checkpoints(
    size: int, extra: int, selection: Selection, seed: int
) -> None:
    draw = random.Random(seed)
    progress = progress_of(size, extra, selection)
    order = list(range(size + extra))
    draw.shuffle(order)
    for sample in order:
        if draw.random() < 0.3:
            progress.late(draw.choice(order))
        if draw.random() < 0.3:
            progress.attempts[sample] = 1
        (lose if draw.random() < 0.3 else end)(progress, sample)
        if draw.random() < 0.3:
            before = progress
            progress = GroupProgress.from_dict(json.loads(json.dumps(before.to_dict())))
            assert progress.open == before.open
            assert progress.attempts == before.attempts
            if selection == "first" or not before._late:
                assert progress.counting == before.counting
        if progress.complete:
            group = progress.group()
            assert len(group.trajectories) == size
            assert samples(group) == sorted(set(samples(group)))
            assert len(group.trainable) == min(size, len(progress.ended_episodes))
    assert progress.complete, "when everything has ended, nothing is left to wait for"


def test_planned_by_hand() -> None:
    assert planned([5, 6, 7, 8], 2, lost=[], late=[]) == [5, 6]
    assert planned([5, 6, 7, 8], 2, lost=[5], late=[6]) == [7, 8]
    assert planned([5, 6, 7], 2, lost=[7], late=[5]) == [6, 5]
    assert planned([5], 2, lost=[], late=[5]) == [5]


def test_a_group_survives_json() -> None:
    request = GroupRequest(4, "t", 2, 1, version=3, life=2, env="shop")
    group = Group(request, [ended(request.episodes()[0], 0.5), failed(request.episodes()[1])])
    assert Group.from_dict(json.loads(json.dumps(group.to_dict()))) == group
