"""The sample buffer under random orders of events: the admission formula, the bound, redundancy, and nothing lost."""

from __future__ import annotations

import json
import math
import random
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout.fakes import ended, failed

from rollenv.errors import RollenvError
from rollenv.rollout.buffer import BatchPlan, SampleBuffer
from rollenv.rollout.groups import Group, GroupRequest
from rollenv.rollout.sources import Draw, InOrder
from rollenv.seeding import TaskOrder

ORDER = TaskOrder([f"t{i}" for i in range(11)], seed=5)
ETAS = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.3])
PLANS = st.builds(
    BatchPlan,
    groups=st.integers(1, 5),
    size=st.just(2),
    eta=ETAS,
    filter_mode=st.sampled_from(["keep", "drop", "refill"]),
    max_refills=st.integers(0, 3),
    extra_groups=st.integers(0, 4),
    extra_samples=st.just(0),
    selection=st.sampled_from(["first", "unbiased"]),
)


def finish(request: GroupRequest, version: int, signal: bool = True) -> Group:
    episodes = request.episodes()[: request.size]
    return Group(request, [ended(e, float(signal and e.sample % 2), version=version) for e in episodes])


class Life:
    """Drives a buffer with events in an order that `draw` decides, and looks at the books after each.

    Between the events of a checkpoint it is written down as JSON and read back into a new buffer.
    """

    def __init__(self, plan: BatchPlan, draw: random.Random) -> None:
        self.plan, self.draw = plan, draw
        self.buffer = SampleBuffer(plan, InOrder(ORDER), 7)
        self.running: dict[int, GroupRequest] = {}
        self.trained: list[int] = []
        self.idle: list[int] = []

    def admit(self) -> None:
        plan, buffer = self.plan, self.buffer
        before = buffer._accepted + len(self.running)
        requests = buffer.admit()
        bound = math.floor((Fraction(plan.eta).limit_denominator(100) + buffer.version + 1) * plan.groups)
        extra = 0 if buffer._closed else plan.extra_groups
        assert len(requests) == max(0, bound + extra - before)
        for request in requests:
            assert request.index not in self.running
            assert request.version == buffer.version
            assert request.task == ORDER[request.index]
            self.running[request.index] = request

    def event(self) -> None:
        if self.running and self.draw.random() < 0.1:
            self.buffer.straggles(self.draw.choice(list(self.running)))
        if self.running:
            request = self.running.pop(self.draw.choice(list(self.running)))
            self.buffer.finished(finish(request, self.buffer.version, self.draw.random() < 0.7))
        if self.draw.random() < 0.1:
            self.resume()

    def resume(self) -> None:
        state = json.loads(json.dumps(self.buffer.state_dict()))
        self.buffer = SampleBuffer(self.plan, InOrder(ORDER), 7)
        again = self.buffer.load_state_dict(state)
        assert {request.index: request for request in again} == self.running

    def step(self) -> None:
        self.admit()
        while not self.buffer.full:
            self.event()
            self.admit()
        surplus = self.buffer.close()
        assert len(surplus.running) + len(surplus.finished) <= self.plan.extra_groups
        for index in surplus.running:
            del self.running[index]
        if self.draw.random() < 0.3:
            self.resume()  # a checkpoint between closing and taking
        batch = self.buffer.take()
        assert len(batch.groups) + len(batch.idle) >= self.plan.groups
        for group in batch.groups:
            assert 0 <= batch.version - group.request.version <= math.ceil(self.plan.eta)
        assert all(0 <= age <= math.ceil(self.plan.eta) for age in batch.staleness)
        self.trained += [group.request.index for group in batch.groups]
        self.idle += [group.request.index for group in batch.idle]
        if self.running and self.draw.random() < 0.5:
            self.event()  # while the trainer works
        assert self.buffer.weights_updated(self.buffer.version + 1) == []
        self.check()

    def check(self) -> None:
        state = self.buffer.state_dict()
        kept = [group["request"]["index"] for group in [*state["ready"], *state["idle"]]]
        waiting = [request["index"] for request in [*state["running"], *state["again"]]]
        everything = [*self.trained, *self.idle, *kept, *waiting]
        assert sorted(everything) == list(range(state["next_index"])), "each group is in exactly one place"
        assert {request["index"] for request in state["running"]} == set(self.running)


@settings(max_examples=300)
@given(PLANS, st.integers(0, 10**9))
def test_any_order_of_events_keeps_the_books_and_the_bound(plan: BatchPlan, seed: int) -> None:
    life = Life(plan, random.Random(seed))
    for _ in range(6):
        life.step()


@settings(max_examples=100)
@given(st.integers(1, 5), st.integers(0, 4), st.sampled_from(["first", "unbiased"]), st.integers(0, 10**9))
def test_what_was_cancelled_is_played_before_anything_new(groups: int, extra: int, selection: Any, seed: int) -> None:
    """No task starves for good: of what was begun, at most the extra groups wait at any step boundary."""
    life = Life(BatchPlan(groups, 2, filter_mode="keep", extra_groups=extra, selection=selection), random.Random(seed))
    for step in range(1, 9):
        life.step()
        assert len(life.trained) == step * groups
        # At every boundary, no more has been begun than was trained and one batch's redundancy.
        assert max(life.trained) < step * groups + extra


def plan_of(**options: Any) -> BatchPlan:
    return BatchPlan(**({"groups": 2, "size": 2, "filter_mode": "keep", "extra_groups": 2} | options))


def test_the_first_to_finish_make_the_batch_and_the_rest_is_surplus() -> None:
    buffer = SampleBuffer(plan_of(), InOrder(ORDER), 0)
    requests = {request.index: request for request in buffer.admit()}
    assert list(requests) == [0, 1, 2, 3]
    buffer.finished(finish(requests[3], 0))
    assert not buffer.full
    buffer.finished(finish(requests[1], 0))
    assert buffer.full
    surplus = buffer.close()
    assert sorted(surplus.running) == [0, 2]
    assert [group.request.index for group in buffer.take().groups] == [1, 3]
    buffer.weights_updated(1)
    again = buffer.admit()
    assert [(r.index, r.life, r.version) for r in again] == [(0, 1, 1), (2, 1, 1), (4, 0, 1), (5, 0, 1)]
    assert [r.task for r in again] == [ORDER[i] for i in (0, 2, 4, 5)]
    seeds = [episode.seed for episode in again[0].episodes()]
    assert seeds == [episode.seed for episode in requests[0].episodes()], "seeds do not depend on the life"


def test_unbiased_waits_for_the_planned_groups_however_quick_the_spares_are() -> None:
    buffer = SampleBuffer(plan_of(selection="unbiased"), InOrder(ORDER), 0)
    requests = buffer.admit()
    for quick in (3, 2, 1):
        buffer.finished(finish(requests[quick], 0))
        assert not buffer.full
    buffer.finished(finish(requests[0], 0))
    surplus = buffer.close()
    assert surplus.running == []
    assert [group.request.index for group in surplus.finished] == [2, 3]
    assert buffer.discarded_groups == 2
    assert [group.request.index for group in buffer.take().groups] == [0, 1]


def test_unbiased_replaces_a_straggler_by_the_next_in_the_plan() -> None:
    buffer = SampleBuffer(plan_of(selection="unbiased"), InOrder(ORDER), 0)
    requests = buffer.admit()
    buffer.finished(finish(requests[3], 0))
    buffer.finished(finish(requests[0], 0))
    buffer.straggles(1)
    assert not buffer.full, "group 2 is the spare whose turn it is, not 3, which was quicker"
    buffer.finished(finish(requests[2], 0))
    surplus = buffer.close()
    assert surplus.running == [1]
    assert [group.request.index for group in buffer.take().groups] == [0, 2]


def test_a_straggler_that_comes_in_time_after_all_counts() -> None:
    buffer = SampleBuffer(plan_of(selection="unbiased"), InOrder(ORDER), 0)
    requests = buffer.admit()
    buffer.straggles(0)
    buffer.finished(finish(requests[0], 0))
    buffer.finished(finish(requests[1], 0))
    buffer.close()
    assert [group.request.index for group in buffer.take().groups] == [0, 1]


def test_with_staleness_only_what_exceeds_the_bound_is_cancelled() -> None:
    """eta 1, B 2, 2 extra: six run; when two are ready, two may run on for the next batch and two are surplus."""
    buffer = SampleBuffer(plan_of(eta=1.0), InOrder(ORDER), 0)
    requests = buffer.admit()
    assert len(requests) == 6
    buffer.finished(finish(requests[4], 0))
    buffer.finished(finish(requests[5], 0))
    assert sorted(buffer.close().running) == [2, 3]
    assert [g.request.index for g in buffer.take().groups] == [4, 5]
    assert buffer.admit() == [], "nothing extra is begun with weights that are about to go"
    buffer.weights_updated(1)
    assert [r.index for r in buffer.admit()] == [2, 3, 6, 7]


def test_a_smaller_bound_on_resume_plays_again_what_is_too_old() -> None:
    buffer = SampleBuffer(plan_of(eta=2.0, extra_groups=0), InOrder(ORDER), 0)
    requests = buffer.admit()
    buffer.finished(finish(requests[5], 0))
    buffer.finished(finish(requests[4], 0))
    buffer.close()
    buffer.take()
    buffer.finished(finish(requests[0], 0))
    buffer.weights_updated(1)
    buffer.admit()
    state = json.loads(json.dumps(buffer.state_dict()))
    strict = SampleBuffer(plan_of(eta=0.0, extra_groups=0), InOrder(ORDER), 0)
    resumed = strict.load_state_dict(state)
    assert {request.version for request in resumed} == {1}
    assert strict.discarded_groups == 1
    assert sorted(state_indices(strict)) == sorted(state_indices(buffer))


def state_indices(buffer: SampleBuffer) -> list[int]:
    state = buffer.state_dict()
    return [r["index"] for r in [*state["running"], *state["again"], *(g["request"] for g in state["ready"])]]


def test_a_batch_that_is_not_full_cannot_be_taken() -> None:
    buffer = SampleBuffer(plan_of(), InOrder(ORDER), 0)
    buffer.admit()
    with pytest.raises(ValueError, match="not full"):
        buffer.close()
    with pytest.raises(ValueError, match="not full"):
        buffer.take()


def test_when_no_task_is_left_nothing_that_was_drawn_is_lost() -> None:
    class Dry(InOrder):
        def draw(self) -> Draw:
            if self._cursor == 3:
                raise RollenvError("all tasks are in quarantine")
            return super().draw()

    buffer = SampleBuffer(plan_of(), Dry(ORDER), 0)
    for _ in range(2):
        with pytest.raises(RollenvError):
            buffer.admit()
        state = buffer.state_dict()
        assert [request["index"] for request in state["again"]] == [0, 1, 2]
        assert state["running"] == []


def test_a_failed_group_counts_but_carries_no_signal() -> None:
    buffer = SampleBuffer(plan_of(extra_groups=0, filter_mode="drop"), InOrder(ORDER), 0)
    first, second = buffer.admit()
    buffer.finished(Group(first, [failed(e) for e in first.episodes()]))
    buffer.finished(finish(second, 0))
    buffer.close()
    batch = buffer.take()
    assert [g.request.index for g in batch.groups] == [1]
    assert [g.request.index for g in batch.idle] == [0]
