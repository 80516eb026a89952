"""Admission and batches: staleness bounded, nothing starved, nothing played twice or skipped."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout.fakes import ended, failed, of, run

from rollenv.rollout.buffer import Batch, BatchPlan, SampleBuffer
from rollenv.rollout.controller import RolloutController
from rollenv.rollout.episode import EpisodeRequest
from rollenv.rollout.groups import Group, GroupRequest
from rollenv.rollout.scheduler import Scheduler
from rollenv.rollout.selection import has_signal
from rollenv.rollout.sources import InOrder
from rollenv.rollout.staleness import admissible, last_version, overdue
from rollenv.seeding import TaskOrder
from rollenv.trajectory import StopReason, Trajectory

PATIENT = settings(max_examples=50)
ETAS = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.3])
ORDER = TaskOrder([f"t{i}" for i in range(7)], seed=3)


# -- admission -------------------------------------------------------------------------------------------------


@PATIENT
@given(st.integers(0, 20), st.integers(0, 4), st.integers(1, 12), st.integers(0, 300), st.integers(0, 300))
def test_admission_formula(quarters: int, version: int, batch: int, accepted: int, running: int) -> None:
    """floor((eta + v + 1) B) - (accepted + running), in exact fractions; never negative."""
    exact = math.floor((Fraction(quarters, 4) + version + 1) * batch) - (accepted + running)
    assert admissible(quarters / 4, version, batch, accepted + running) == max(0, exact)


def test_rounding_hides_no_group() -> None:
    assert admissible(0.1, 0, 10, 0) == 11  # (0.1 + 1) * 10 is 11.000000000000002, (0.7 + 1) * 10 is 17.0
    assert admissible(0.2 + 0.1, 0, 10, 0) == 13
    assert admissible(1.1 - 0.8, 0, 10, 0) == 13  # 0.30000000000000004 and 0.29999999999999993


@PATIENT
@given(ETAS, st.integers(1, 9))
def test_a_batch_is_always_admitted_before_it_is_due(eta: float, batch: int) -> None:
    """Never starves: with all earlier batches trained, at least the next batch may be in the works."""
    for version in range(5):
        assert admissible(eta, version, batch, version * batch) >= batch


def test_deadlines_by_hand() -> None:
    assert [last_version(eta, 5) for eta in (0, 0.5, 1, 1.5, 2)] == [5, 6, 6, 7, 7]


@PATIENT
@given(st.lists(st.integers(3, 8), max_size=8), st.integers(1, 3))
def test_overdue_is_what_no_timetable_can_place(deadlines: list[int], batch: int) -> None:
    """Against a timetable made by hand: the most urgent first, `batch` at a time."""
    waiting, missed, version = sorted(deadlines), 0, 3
    while waiting:
        version += 1
        missed += sum(deadline < version for deadline in waiting)
        waiting = [deadline for deadline in waiting if deadline >= version][batch:]
    assert overdue(deadlines, 3, batch) == missed


# -- batches ---------------------------------------------------------------------------------------------------


class Timed:
    """Attempts take as many turns of the loop as `seed` says; tokens carry the version at their end."""

    def __init__(self, seed: int, longest: int, flat: float = 0.0) -> None:
        self.seed, self.longest, self.flat = seed, longest, flat
        self.version = 0
        self.played: Counter[int] = Counter()

    def has_signal(self, index: int) -> bool:
        return random.Random(f"flat {index}").random() >= self.flat

    async def __call__(self, request: EpisodeRequest) -> Trajectory:
        began = self.version
        try:
            for _ in range(random.Random(f"{self.seed} {request.group} {request.sample}").randint(0, self.longest)):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            return of(request, StopReason.ABORTED, [])
        self.played[request.group] += 1
        reward = float(request.sample % 2) if self.has_signal(request.group) else 0.5
        trajectory = ended(request, reward)
        trajectory.turns[0].policy_versions = [began] * 2 + [self.version]
        return trajectory


class Loop:
    """A trainer that only counts."""

    def __init__(self, play: Timed, batch: int, eta: float, concurrency: int = 16, **options: Any) -> None:
        self.play = play
        self.scheduler = Scheduler(play, concurrency)
        buffer = SampleBuffer(BatchPlan(batch, 2, eta, **options), InOrder(ORDER), 11)
        self.controller = RolloutController(self.scheduler, buffer)

    async def step(self, thinking: int = 0) -> Batch:
        batch = await self.controller.next_batch()
        for _ in range(thinking):
            await asyncio.sleep(0)
        self.play.version += 1
        self.controller.weights_updated(self.play.version)
        return batch


@PATIENT
@given(
    eta=ETAS,
    batch=st.integers(1, 5),
    concurrency=st.integers(1, 20),
    seed=st.integers(0, 10**6),
    longest=st.sampled_from([0, 3, 30]),
    thinking=st.integers(0, 10),
)
def test_batches_are_whole_and_never_staler_than_the_bound(
    eta: float, batch: int, concurrency: int, seed: int, longest: int, thinking: int
) -> None:
    async def main() -> tuple[list[Batch], Loop]:
        loop = Loop(Timed(seed, longest), batch, eta, concurrency, filter_mode="keep")
        batches = [await loop.step(thinking) for _ in range(8)]
        await loop.scheduler.close()
        return batches, loop

    batches, loop = run(main())
    trained = [group.request.index for b in batches for group in b.groups]
    assert len(trained) == len(set(trained)) == 8 * batch
    for b in batches:
        assert len(b.groups) == batch
        assert max(b.staleness) <= math.ceil(eta)
        assert min(b.staleness) >= 0
        for group in b.groups:
            assert b.version - group.request.version <= math.ceil(eta)
            assert group.request.task == ORDER[group.request.index]
            assert group.oldest_version == min(v for t in group.trajectories for v in t.turns[0].policy_versions)
    assert max(loop.play.played.values()) <= 2  # each of a group's two samples once


def test_a_fractional_bound_gives_a_fraction_of_stale_groups() -> None:
    """With eta 0.5 half of every batch is one version old and half is fresh, when everything is quick."""

    async def main() -> list[Batch]:
        loop = Loop(Timed(0, 0), 4, 0.5, filter_mode="keep")
        batches = [await loop.step(thinking=20) for _ in range(6)]
        await loop.scheduler.close()
        return batches

    assert [sorted(b.staleness) for b in run(main())[1:]] == [[0, 0, 1, 1]] * 5


def test_a_fractional_bound_does_not_wait_for_groups_that_may_train_next_time() -> None:
    """eta 0.5, B 2: three groups start; the batch is taken while the third still plays."""

    class Slow(Timed):
        async def __call__(self, request: EpisodeRequest) -> Trajectory:
            if request.group == 2:
                await asyncio.sleep(3600)
            return await super().__call__(request)

    async def main() -> Batch:
        loop = Loop(Slow(0, 0), 2, 0.5, filter_mode="keep")
        batch = await loop.step()
        await loop.scheduler.close()
        return batch

    assert [g.request.index for g in run(main()).groups] == [0, 1]


@PATIENT
@given(
    seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    mode=st.sampled_from(["keep", "drop", "refill"]),
    refills=st.integers(0, 4),
    concurrency=st.integers(1, 12),
)
def test_without_staleness_batches_do_not_depend_on_who_finishes_first(
    seeds: tuple[int, int], mode: Any, refills: int, concurrency: int
) -> None:
    async def main(seed: int) -> list[Any]:
        loop = Loop(Timed(seed, 12, flat=0.5), 3, 0.0, concurrency, filter_mode=mode, max_refills=refills)
        batches = [await loop.step() for _ in range(5)]
        await loop.scheduler.close()
        return [
            ([g.request for g in b.groups], sorted(g.request.index for g in b.idle), b.staleness, b.version)
            for b in batches
        ]

    assert run(main(seeds[0])) == run(main(seeds[1]))


@PATIENT
@given(st.integers(0, 10**6), st.integers(0, 5), st.integers(1, 5))
def test_refill_replaces_groups_without_signal_up_to_its_bound(seed: int, refills: int, batch: int) -> None:
    async def main() -> list[Batch]:
        loop = Loop(Timed(seed, 5, flat=0.6), batch, 0.0, filter_mode="refill", max_refills=refills)
        batches = [await loop.step() for _ in range(4)]
        await loop.scheduler.close()
        return batches

    for b in run(main()):
        assert all(has_signal(group) for group in b.groups)
        assert not any(has_signal(group) for group in b.idle)
        assert len(b.idle) <= refills + batch
        assert len(b.groups) == batch or len(b.idle) - refills == batch - len(b.groups)
        assert [g.request.index for g in b.played] == sorted(g.request.index for g in [*b.groups, *b.idle])


# -- interruption and resume -----------------------------------------------------------------------------------


def waiting(state: dict[str, Any]) -> list[int]:
    """The groups that were begun and not yet given to the trainer."""
    buffer = json.loads(json.dumps(state))["buffer"]
    finished = [group["request"] for group in [*buffer["ready"], *buffer["idle"]]]
    return [request["index"] for request in [*buffer["running"], *finished, *buffer["again"]]]


@PATIENT
@given(
    eta=ETAS,
    batch=st.integers(1, 4),
    concurrency=st.integers(1, 12),
    mode=st.sampled_from(["keep", "refill"]),
    seed=st.integers(0, 10**6),
    ticks=st.integers(0, 60),
)
def test_resume_plays_no_group_twice_and_skips_none(
    eta: float, batch: int, concurrency: int, mode: Any, seed: int, ticks: int
) -> None:
    """Interrupted at any moment, batches trained before and after hold each group of the order exactly once."""

    async def main() -> tuple[list[Batch], Loop]:
        loop = Loop(Timed(seed, 6, flat=0.4), batch, eta, concurrency, filter_mode=mode)
        batches = [await loop.step(), await loop.step()]
        pending = asyncio.ensure_future(loop.controller.next_batch())
        for _ in range(ticks):
            await asyncio.sleep(0)
        if pending.done():
            batches.append(pending.result())
            loop.play.version += 1
            loop.controller.weights_updated(loop.play.version)
        state = loop.controller.state_dict()
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        await loop.scheduler.close()
        play = Timed(seed + 1, 6, flat=0.4)
        play.version = state["buffer"]["version"]
        resumed = Loop(play, batch, eta, concurrency, filter_mode=mode)
        resumed.controller.load_state_dict(state)
        batches += [await resumed.step() for _ in range(3)]
        rest = resumed.controller.state_dict()
        await resumed.scheduler.close()
        played = [group.request.index for b in batches for group in b.played]
        assert len(played) == len(set(played))
        assert sorted(played + waiting(rest)) == list(range(rest["buffer"]["next_index"]))  # none skipped
        assert [b.version for b in batches] == list(range(len(batches)))
        assert all(max(b.staleness, default=0) <= math.ceil(eta) for b in batches)
        return batches, resumed

    run(main())


@PATIENT
@given(st.integers(0, 10**6), st.integers(0, 40), st.sampled_from(["keep", "drop", "refill"]))
def test_without_staleness_an_interrupted_run_has_the_batches_of_an_uninterrupted_one(
    seed: int, ticks: int, mode: Any
) -> None:
    def facts(batches: list[Batch]) -> list[Any]:
        return [
            ([(g.request, g.trajectories) for g in b.groups], [g.request.index for g in b.played], b.version)
            for b in batches
        ]

    async def whole() -> list[Any]:
        loop = Loop(Timed(seed, 6, flat=0.5), 3, 0.0, filter_mode=mode, max_refills=2)
        batches = [await loop.step() for _ in range(4)]
        await loop.scheduler.close()
        return facts(batches)

    async def broken() -> list[Any]:
        first = Loop(Timed(seed, 6, flat=0.5), 3, 0.0, filter_mode=mode, max_refills=2)
        batches = [await first.step()]
        pending = asyncio.ensure_future(first.controller.next_batch())
        for _ in range(ticks):
            if pending.done():
                break
            await asyncio.sleep(0)
        if pending.done():
            batches.append(pending.result())
            first.play.version = 2
            first.controller.weights_updated(2)
        state = first.controller.state_dict()
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        await first.scheduler.close()
        second = Loop(Timed(seed, 6, flat=0.5), 3, 0.0, filter_mode=mode, max_refills=2)
        second.play.version = state["buffer"]["version"]
        second.controller.load_state_dict(state)
        while len(batches) < 4:
            batches.append(await second.step())
        await second.scheduler.close()
        return facts(batches)

    assert run(broken()) == run(whole())


# -- signal ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "signal"),
    [([0.0, 1.0], True), ([1.0, 1.0], False), ([0.1 + 0.2, 0.3], False), ([1.0], False), ([], False)],
)
def test_a_group_has_signal_when_its_returns_differ(rewards: list[float], signal: bool) -> None:
    request = GroupRequest(0, "t", len(rewards), 0)
    trajectories = [ended(e, r) for e, r in zip(request.episodes(), rewards, strict=True)]
    assert has_signal(Group(request, trajectories)) is signal


def test_a_failure_is_no_signal() -> None:
    """One success and one crash: nothing to compare, the crash is not a zero."""
    one, other = GroupRequest(0, "t", 2, 0).episodes()
    assert not has_signal(Group(GroupRequest(0, "t", 2, 0), [ended(one, 1.0), failed(other)]))


def test_seeds_of_episodes_depend_on_place_alone() -> None:
    early, late = GroupRequest(3, "t", 4, 9, version=0), GroupRequest(3, "t", 4, 9, version=7)
    assert early.episodes() == late.episodes()
    assert len({e.seed for i in range(20) for e in GroupRequest(i, "t", 4, 9).episodes()}) == 80
