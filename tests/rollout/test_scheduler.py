"""The scheduler and its ledger under random luck: every episode ends once, every group is delivered once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout.fakes import ended, failed, of, run

from rollenv.errors import RollenvError
from rollenv.rollout.controller import collect
from rollenv.rollout.episode import EpisodeRequest
from rollenv.rollout.groups import Group, GroupRequest
from rollenv.rollout.ledger import Ledger
from rollenv.rollout.scheduler import Scheduler
from rollenv.trajectory import StopReason, Trajectory, Turn

PATIENT = settings(max_examples=60)


class Luck:
    """Plays attempts that end, fail or take long, as a seed decides for each (group, sample, attempt)."""

    def __init__(self, seed: int, fail: float, longest: int) -> None:
        self.seed, self.fail, self.longest = seed, fail, longest
        self.active: set[EpisodeRequest] = set()
        self.most = 0
        self.began: list[EpisodeRequest] = []

    def outcome(self, request: EpisodeRequest) -> tuple[int, bool]:
        draw = random.Random(f"{self.seed}/{request.group}/{request.sample}/{request.attempt}")
        return draw.randint(0, self.longest), draw.random() < self.fail

    async def __call__(self, request: EpisodeRequest) -> Trajectory:
        self.began.append(request)
        self.active.add(request)
        self.most = max(self.most, len(self.active))
        ticks, fails = self.outcome(request)
        try:
            for _ in range(ticks):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            return of(request, StopReason.ABORTED, [Turn("", [1], [2, 2], [0.0, 0.0], [0, 0])])
        finally:
            self.active.discard(request)
        return failed(request) if fails else ended(request)


def requests_of(sizes: list[int]) -> list[GroupRequest]:
    return [GroupRequest(index, f"t{index}", size, run_seed=1) for index, size in enumerate(sizes)]


async def watched(scheduler: Scheduler, luck: Luck, stop: asyncio.Event) -> int:
    """Looks at the books at every turn of the loop."""
    looks = 0
    while not stop.is_set():
        ledger = scheduler.ledger
        assert ledger.balanced
        # An attempt is in flight from its first to its last step; those that end are booked in the same breath.
        assert ledger.in_flight == len(luck.active)
        assert ledger.in_flight <= scheduler._concurrency
        looks += 1
        await asyncio.sleep(0)
    return looks


@PATIENT
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    concurrency=st.integers(1, 6),
    attempts=st.integers(1, 3),
    fail=st.sampled_from([0.0, 0.3, 0.9]),
    seed=st.integers(0, 10**6),
)
def test_every_group_is_delivered_once_and_the_ledger_always_balances(
    sizes: list[int], concurrency: int, attempts: int, fail: float, seed: int
) -> None:
    luck = Luck(seed, fail, longest=5)

    async def main() -> tuple[list[Group], Ledger]:
        scheduler = Scheduler(luck, concurrency, attempts, give_up_after=10**6)
        stop = asyncio.Event()
        watcher = asyncio.ensure_future(watched(scheduler, luck, stop))
        groups = await collect(scheduler, requests_of(sizes))
        stop.set()
        assert await watcher > 0
        assert scheduler.pending == 0
        assert scheduler.unfinished == []
        return groups, scheduler.ledger

    groups, ledger = run(main())
    assert [group.request.index for group in groups] == list(range(len(sizes)))
    tried = 0
    for group, size in zip(groups, sizes, strict=True):
        assert [t.sample for t in group.trajectories] == list(range(size))
        for trajectory in group.trajectories:
            fates = [luck.outcome(EpisodeRequest("", 0, trajectory.group, trajectory.sample, a))[1] for a in range(9)]
            first_good = fates.index(False) if False in fates[:attempts] else None
            assert trajectory.stop is (StopReason.FAILED if first_good is None else StopReason.TERMINATED)
            assert trajectory.attempt == (attempts - 1 if first_good is None else first_good)
            tried += trajectory.attempt + 1
    assert len(luck.began) == len(set(luck.began)) == tried  # no attempt twice
    assert ledger.dispatched == tried
    assert ledger.in_flight == ledger.cancelled == 0
    episodes = [t for group in groups for t in group.trajectories]
    assert ledger.finished == sum(t.stop is not StopReason.FAILED for t in episodes)
    assert ledger.retried == sum(t.attempt for t in episodes)
    assert ledger.failures == Counter({"env/crash": ledger.failed} if ledger.failed else {})
    assert luck.most <= concurrency


@PATIENT
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    concurrency=st.integers(1, 6),
    fail=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 10**6),
    ticks=st.integers(0, 25),
)
def test_closing_at_any_moment_leaves_nothing_in_flight(
    sizes: list[int], concurrency: int, fail: float, seed: int, ticks: int
) -> None:
    luck = Luck(seed, fail, longest=8)

    async def main() -> Scheduler:
        scheduler = Scheduler(luck, concurrency, give_up_after=10**6)
        for request in requests_of(sizes):
            scheduler.submit(request)
        for _ in range(ticks):
            await asyncio.sleep(0)
            assert scheduler.ledger.balanced
        began = len(luck.began)
        delivered = scheduler.pending
        await scheduler.close()
        assert len(luck.began) == began  # a cancelled attempt is not tried again, a queued one never starts
        assert scheduler.pending == delivered  # and no group of cancelled episodes is delivered
        return scheduler

    ledger = run(main()).ledger
    assert ledger.balanced
    assert ledger.in_flight == 0
    assert not luck.active
    assert ledger.dispatched == len(luck.began)
    assert ledger.wasted_tokens == 2 * ledger.cancelled
    assert ledger.tokens == 2 * ledger.cancelled + 3 * ledger.finished


def test_concurrency_is_used_to_the_full_across_groups() -> None:
    """Samples are pulled from one queue: a slow group does not keep places empty."""
    luck = Luck(0, 0.0, longest=0)
    luck.outcome = lambda request: (50 if request.group == 0 else 1, False)  # type: ignore[method-assign]

    async def main() -> list[int]:
        scheduler = Scheduler(luck, 4)
        for request in requests_of([2, 2, 2, 2]):
            scheduler.submit(request)
        return [(await scheduler.next_group()).request.index for _ in range(4)]

    assert run(main())[-1] == 0  # the first to start is the last to end, and nobody waited for it
    assert luck.most == 4


def test_a_player_that_raises_ends_the_wait_with_its_error() -> None:
    async def broken(request: EpisodeRequest) -> Trajectory:
        raise ZeroDivisionError("a defect, not a fault")

    async def main() -> Ledger:
        scheduler = Scheduler(broken, 2)
        with pytest.raises(ZeroDivisionError):
            await collect(scheduler, requests_of([3]))
        await scheduler.close()
        return scheduler.ledger

    ledger = run(main())
    assert ledger.balanced
    assert ledger.in_flight == 0
    assert ledger.cancelled == ledger.dispatched


def test_an_environment_that_always_fails_is_given_up_with_its_reason() -> None:
    attempts: list[EpisodeRequest] = []

    async def broken(request: EpisodeRequest) -> Trajectory:
        attempts.append(request)
        await asyncio.sleep(0)
        return failed(request)

    async def main() -> None:
        scheduler = Scheduler(broken, concurrency=2, give_up_after=20)
        with pytest.raises(RollenvError, match=r"20 episodes in a row failed.*task 't\d+', with env crash: broken"):
            await collect(scheduler, requests_of([4] * 20))
        await scheduler.close()

    run(main())
    assert 20 <= len(attempts) <= 22  # it stopped there, two being in flight


def test_failures_in_between_successes_are_bad_luck_not_a_breakdown() -> None:
    luck = Luck(3, 0.5, longest=2)

    async def main() -> list[Group]:
        return await collect(Scheduler(luck, 4, give_up_after=30), requests_of([4] * 40))

    groups = run(main())
    assert len(groups) == 40


def test_a_group_cannot_be_submitted_twice() -> None:
    async def main() -> None:
        scheduler = Scheduler(Luck(0, 0, 3), 1)
        scheduler.submit(GroupRequest(0, "a", 1, 0))
        with pytest.raises(ValueError, match="already in the scheduler"):
            scheduler.submit(GroupRequest(0, "a", 1, 0))
        await scheduler.close()

    run(main())


def test_a_failed_member_is_delivered_but_not_trainable() -> None:
    async def play(request: EpisodeRequest) -> Trajectory:
        return failed(request) if request.sample == 1 else ended(request)

    async def main() -> Group:
        (group,) = await collect(Scheduler(play, 4), requests_of([3]))
        return group

    group = run(main())
    assert [t.stop for t in group.trajectories] == [StopReason.TERMINATED, StopReason.FAILED, StopReason.TERMINATED]
    assert [t.sample for t in group.trainable] == [0, 2]


# -- the ledger ------------------------------------------------------------------------------------------------


@PATIENT
@given(st.lists(st.sampled_from(["dispatch", *StopReason]), max_size=40))
def test_ledger_arithmetic_and_round_trip(events: list[Any]) -> None:
    ledger = Ledger()
    for event in events:
        if event == "dispatch":
            ledger.dispatch()
        elif ledger.in_flight:
            ledger.settle(of(EpisodeRequest("t", 0), event, []))
        assert ledger.balanced
    assert Ledger.from_dict(ledger.to_dict()) == ledger
    copy = Ledger.from_dict(ledger.to_dict())
    copy.abandon()
    assert copy.balanced
    assert copy.in_flight == 0
    assert copy.cancelled == ledger.cancelled + ledger.in_flight


def test_ledger_copies_share_nothing() -> None:
    ledger = Ledger()
    data = ledger.to_dict()
    ledger.dispatch()
    ledger.settle(failed(EpisodeRequest("t", 0)))
    assert data["failures"] == {}
    assert data["dispatched"] == 0
