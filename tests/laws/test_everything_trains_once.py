"""Laws 2, 4 and 6 together: whatever happens in whatever order, the books balance and each task trains exactly once.

Episodes finish, fail, hang until their deadline, are cancelled; weights change under them; checkpoints are written in
between, the process dies and goes on from the last one.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from typing import Any

from rollout.fakes import ended, failed, of

from rollenv.rollout.bias import BiasReport
from rollenv.rollout.buffer import Batch, BatchPlan, SampleBuffer
from rollenv.rollout.controller import RolloutController
from rollenv.rollout.episode import EpisodeRequest
from rollenv.rollout.ledger import Ledger
from rollenv.rollout.scheduler import Scheduler
from rollenv.rollout.sources import InOrder
from rollenv.seeding import TaskOrder
from rollenv.trajectory import StopReason, Trajectory

INTERLEAVINGS = 10_000
TASKS = TaskOrder([f"t{i}" for i in range(5)], seed=2)


class World:
    """Plays attempts that take some turns of the loop and end as its draw decides."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.version = draw, 0
        self.active = 0

    async def __call__(self, request: EpisodeRequest) -> Trajectory:
        fate, version = self.draw.random(), self.version
        hangs = fate < 0.05
        self.active += 1
        try:
            for _ in range(self.draw.choice((20, 40)) if hangs else self.draw.choice((0, 1, 1, 2, 3, 9))):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            return of(request, StopReason.ABORTED, [])
        finally:
            self.active -= 1
        if fate < 0.2:
            return failed(request)
        trajectory = ended(request, self.draw.choice((0.0, 1.0)))
        trajectory.turns[0].policy_versions = [version, version, self.version]
        return trajectory


class Process:
    """One life of a run, from a checkpoint or from nothing."""

    def __init__(self, plan: BatchPlan, concurrency: int, draw: random.Random, saved: str | None) -> None:
        self.world = World(draw)
        state = json.loads(saved) if saved else None
        ledger = Ledger.from_dict(state["ledger"]) if state else Ledger()
        ledger.abandon()
        bias = BiasReport()
        self.scheduler = Scheduler(
            self.world, concurrency, max_attempts=2, ledger=ledger, give_up_after=10**6, on_episode=bias.ended
        )
        self.controller = RolloutController(self.scheduler, SampleBuffer(plan, InOrder(TASKS), 1), bias)
        if state:
            self.controller.load_state_dict(state["rollouts"])
            self.world.version = self.controller.version

    def save(self) -> str:
        return json.dumps({"ledger": self.scheduler.ledger.to_dict(), "rollouts": self.controller.state_dict()})

    def check(self) -> None:
        assert self.scheduler.ledger.balanced
        assert self.scheduler.ledger.in_flight == self.world.active


async def life(seed: int) -> None:
    draw = random.Random(seed)
    plan = BatchPlan(
        groups=draw.randint(1, 3),
        size=draw.randint(1, 2),
        eta=draw.choice((0.0, 0.5, 1.0, 2.0)),
        filter_mode=draw.choice(("keep", "drop", "refill")),
        max_refills=2,
        extra_groups=draw.randint(0, 2),
        extra_samples=draw.randint(0, 1),
        selection=draw.choice(("first", "unbiased")),
    )
    concurrency = draw.randint(1, 8)
    process, saved, trained, saved_trained = Process(plan, concurrency, draw, None), None, [], []
    for _ in range(4):
        pending = asyncio.ensure_future(process.controller.next_batch())
        while not pending.done():
            await asyncio.sleep(0)
            process.check()
            if pending.done():
                break  # the batch is the trainer's now: the next checkpoint is written after its step
            if draw.random() < 0.03:
                saved, saved_trained = process.save(), list(trained)
            if draw.random() < 0.03:  # killed: nothing of it is left but the last checkpoint
                await killed(process, pending)
                process, trained = Process(plan, concurrency, draw, saved), list(saved_trained)
                pending = asyncio.ensure_future(process.controller.next_batch())
        batch = pending.result()
        check_batch(batch, plan)
        trained += [group.request.index for group in batch.played]
        for _ in range(draw.randint(0, 5)):  # the trainer works
            await asyncio.sleep(0)
        process.world.version += 1
        process.controller.weights_updated(process.world.version)
        if draw.random() < 0.5:
            saved, saved_trained = process.save(), list(trained)
    check_end(process, trained, plan)
    await process.scheduler.close()
    assert process.scheduler.ledger.in_flight == process.world.active == 0
    assert process.scheduler.ledger.balanced


async def killed(process: Process, pending: asyncio.Future[Any]) -> None:
    pending.cancel()
    await asyncio.gather(pending, return_exceptions=True)
    await process.scheduler.close()


def check_batch(batch: Batch, plan: BatchPlan) -> None:
    assert len(batch.played) >= plan.groups
    for group in batch.groups:
        assert len(group.trajectories) == plan.size
        assert batch.version - group.oldest_version <= math.ceil(plan.eta)
        assert not any(t.stop in (StopReason.FAILED, StopReason.ABORTED) for t in group.trainable)


def check_end(process: Process, trained: list[int], plan: BatchPlan) -> None:
    """Every group that was begun was trained once, or waits, once."""
    buffer = process.controller.state_dict()["buffer"]
    finished = [group["request"] for group in [*buffer["ready"], *buffer["idle"]]]
    waiting = [r["index"] for r in [*buffer["running"], *finished, *buffer["again"]]]
    places = Counter([*trained, *waiting])
    assert places == Counter(range(buffer["next_index"]))


def test_ten_thousand_interleavings() -> None:
    async def main() -> None:
        for seed in range(INTERLEAVINGS):
            try:
                await life(seed)
            except Exception as error:
                raise AssertionError(f"interleaving {seed}: {error!r}") from error

    asyncio.run(main())
