"""Redundant rollouts: the surplus is cancelled for real, in engine and environment, the moment it is not needed."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable

import pytest
from inference.clock import run_jumping
from rollout.fakes import Fragile, Recorder, babbles, ended, failed, model_play, of

from rollenv.rollout.buffer import BatchPlan, SampleBuffer
from rollenv.rollout.controller import RolloutController
from rollenv.rollout.episode import EpisodeRequest
from rollenv.rollout.groups import Group, GroupRequest, Selection
from rollenv.rollout.scheduler import Scheduler
from rollenv.rollout.sources import InOrder
from rollenv.seeding import TaskOrder
from rollenv.trajectory import StopReason, Trajectory, Turn

ORDER = TaskOrder([f"t{i}" for i in range(50)], seed=1)


class Sleeps:
    """Attempts that take `seconds(request)` of the loop's time and one token a second."""

    def __init__(self, seconds: Callable[[EpisodeRequest], float]) -> None:
        self.seconds = seconds
        self.ended_at: dict[tuple[int, int, int], float] = {}
        self.stops: list[StopReason] = []

    async def __call__(self, request: EpisodeRequest) -> Trajectory:
        loop = asyncio.get_running_loop()
        began = loop.time()
        stop = StopReason.TERMINATED
        try:
            await asyncio.sleep(self.seconds(request))
        except asyncio.CancelledError:
            stop = StopReason.ABORTED
        self.ended_at[request.group, request.sample, request.life] = loop.time()
        self.stops.append(stop)
        n = int(loop.time() - began)
        turn = Turn("", [1], [2] * n, [0.0] * n, [0] * n, seconds={"env": loop.time() - began})
        return of(request, stop, [turn])


def group_of(scheduler: Scheduler, request: GroupRequest) -> Group:
    async def main() -> Group:
        scheduler.submit(request)
        group = await scheduler.next_group()
        await asyncio.sleep(0)  # what was cancelled ends in the next turn of the loop
        assert scheduler.in_flight == scheduler.queued == 0
        return group

    return run_jumping(main())


def spare(selection: Selection) -> GroupRequest:
    return GroupRequest(0, "t", 3, 0, extra=2, selection=selection)


def test_the_first_samples_count_and_the_rest_stops_at_once() -> None:
    play = Sleeps(lambda request: (9, 1, 8, 2, 3)[request.sample])
    scheduler = Scheduler(play, 8)
    group = group_of(scheduler, spare("first"))
    assert [t.sample for t in group.trajectories] == [1, 3, 4]
    assert play.ended_at == {(0, 1, 0): 1, (0, 3, 0): 2, (0, 4, 0): 3, (0, 0, 0): 3, (0, 2, 0): 3}
    ledger = scheduler.ledger
    assert (ledger.finished, ledger.cancelled, ledger.wasted_tokens, ledger.wasted_env_seconds) == (3, 2, 6, 6.0)


def test_queued_spares_never_start() -> None:
    play = Sleeps(lambda request: 1.0)
    scheduler = Scheduler(play, 3)
    group_of(scheduler, spare("first"))
    assert scheduler.ledger.dispatched == 3


def test_unbiased_samples_wait_for_the_slow_and_discard_the_spares() -> None:
    play = Sleeps(lambda request: (9, 1, 8, 2, 3)[request.sample])
    scheduler = Scheduler(play, 8)
    group = group_of(scheduler, spare("unbiased"))
    assert [t.sample for t in group.trajectories] == [0, 1, 2]
    assert max(play.ended_at.values()) == 9
    assert (scheduler.ledger.discarded, scheduler.ledger.wasted_tokens) == (2, 5)


def test_a_straggler_is_replaced_once_it_is_late() -> None:
    play = Sleeps(lambda request: (100, 1, 8, 2, 3)[request.sample])
    scheduler = Scheduler(play, 8, straggler_seconds=10)
    group = group_of(scheduler, spare("unbiased"))
    assert [t.sample for t in group.trajectories] == [1, 2, 3]
    assert play.ended_at[0, 0, 0] == 10, "the straggler is cancelled when its deadline passes"


def test_without_a_spare_left_a_straggler_is_waited_for_and_reported() -> None:
    play = Sleeps(lambda request: 100.0 if request.sample == 1 else 1.0)
    scheduler = Scheduler(play, 8, straggler_seconds=10)

    async def main() -> list[Group | int]:
        scheduler.submit(GroupRequest(7, "t", 2, 0, selection="unbiased"))
        return [await scheduler.next_event(), await scheduler.next_event()]

    straggles, group = run_jumping(main())
    assert straggles == 7
    assert isinstance(group, Group)
    assert [t.sample for t in group.trajectories] == [0, 1]


def test_a_failed_sample_is_replaced_by_a_spare_of_the_plan() -> None:
    async def play(request: EpisodeRequest) -> Trajectory:
        await asyncio.sleep(0)
        return failed(request) if request.sample == 0 else ended(request)

    scheduler = Scheduler(play, 8, max_attempts=2)
    group = group_of(scheduler, spare("unbiased"))
    assert [t.sample for t in group.trajectories] == [1, 2, 3]


def test_draining_lets_running_episodes_end_and_starts_no_more() -> None:
    play = Sleeps(lambda request: 5.0)
    scheduler = Scheduler(play, 2)

    async def main() -> None:
        scheduler.submit(GroupRequest(0, "t", 5, 0))
        await asyncio.sleep(1)
        await scheduler.drain()
        assert (scheduler.in_flight, scheduler.queued) == (0, 3)
        await asyncio.sleep(100)
        assert scheduler.in_flight == 0
        scheduler.go_on()
        assert scheduler.in_flight == 2
        await scheduler.next_group()

    run_jumping(main())
    assert play.stops == [StopReason.TERMINATED] * 5


# -- batches ---------------------------------------------------------------------------------------------------


def controller_of(play: Sleeps, selection: Selection = "first", straggler: float | None = None) -> RolloutController:
    scheduler = Scheduler(play, 64, straggler_seconds=straggler)
    plan = BatchPlan(4, 2, filter_mode="keep", extra_groups=2, selection=selection)
    return RolloutController(scheduler, SampleBuffer(plan, InOrder(ORDER), 3))


def slow_groups(request: EpisodeRequest) -> float:
    """Groups 1 and 4 take long in their first life."""
    return 1.0 + request.group / 8 + 50.0 * (request.group in (1, 4) and request.life == 0)


def test_a_full_batch_cancels_the_surplus_before_it_is_handed_over() -> None:
    play = Sleeps(slow_groups)
    controller = controller_of(play)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        batch = await controller.next_batch()
        assert [g.request.index for g in batch.groups] == [0, 2, 3, 5]
        assert loop.time() == 1 + 5 / 8
        assert controller.scheduler.in_flight == 0
        assert controller.scheduler.ledger.cancelled == 4
        controller.weights_updated(1)
        batch = await controller.next_batch()
        assert [g.request.index for g in batch.groups] == [1, 4, 6, 7], "what was cancelled comes first"
        await controller.scheduler.close()

    run_jumping(main())


@pytest.mark.parametrize(("straggler", "indices"), [(None, [0, 1, 2, 3]), (10.0, [0, 2, 3, 4])])
def test_unbiased_batches_wait_unless_a_group_straggles(straggler: float | None, indices: list[int]) -> None:
    play = Sleeps(lambda request: 1.0 + 50.0 * (request.group == 1))
    controller = controller_of(play, "unbiased", straggler)

    async def main() -> None:
        batch = await controller.next_batch()
        assert [g.request.index for g in batch.groups] == indices
        assert asyncio.get_running_loop().time() == (straggler or 51.0)
        await controller.scheduler.close()

    run_jumping(main())


def test_spares_have_ended_too_when_a_batch_is_handed_over() -> None:
    """Aborting takes its time in an engine far away: the batch waits for it."""

    class SlowAbort(Sleeps):
        async def __call__(self, request: EpisodeRequest) -> Trajectory:
            trajectory = await super().__call__(request)
            if trajectory.stop is StopReason.ABORTED:
                await asyncio.sleep(0.05)
            return trajectory

    scheduler = Scheduler(SlowAbort(lambda request: 1.0 + request.sample), 64)
    plan = BatchPlan(2, 2, filter_mode="keep", extra_samples=2)
    controller = RolloutController(scheduler, SampleBuffer(plan, InOrder(ORDER), 3))

    async def main() -> None:
        await controller.next_batch()
        assert scheduler.ledger.in_flight == scheduler.in_flight == 0
        assert scheduler.ledger.cancelled == 4

    run_jumping(main())


class Inline(Fragile):
    """On the loop: a clock that jumps does not wait for threads."""

    executor = "inline"


def test_cancelled_sessions_cost_the_engine_nothing_more() -> None:
    """When a batch is full, nothing runs in the engine, no session is left there, and no more tokens are made."""
    engine = Recorder(babbles, seconds_per_token=1.0)
    play = model_play(lambda: Inline(lambda task, tried: "", Counter(), threading.Event()), engine)
    scheduler = Scheduler(play, 64)
    plan = BatchPlan(2, 2, filter_mode="keep", extra_groups=3)
    controller = RolloutController(scheduler, SampleBuffer(plan, InOrder(ORDER), 3))

    async def main() -> None:
        await controller.next_batch()
        assert engine.running == 0
        assert len(engine.aborted) == scheduler.ledger.cancelled > 0
        assert set(engine.aborted) <= set(engine.released)
        asked = len(engine.prompts)
        await asyncio.sleep(100)
        assert len(engine.prompts) == asked
        await scheduler.close()

    run_jumping(main())
