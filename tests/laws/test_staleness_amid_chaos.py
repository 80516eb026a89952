"""Laws 2, 3 and 4 while things break: no token older than the bound trains, nothing failed trains, nothing is lost."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from inference.clock import run_jumping
from rollout.fakes import Fragile, babbles, model_play

from rollenv.config import InjectConfig
from rollenv.inference import ScriptedEngine
from rollenv.rollout.buffer import Batch, BatchPlan, SampleBuffer
from rollenv.rollout.chaos import Chaos
from rollenv.rollout.controller import RolloutController
from rollenv.rollout.figures import staleness_histogram
from rollenv.rollout.scheduler import Scheduler
from rollenv.rollout.sources import InOrder
from rollenv.seeding import TaskOrder
from rollenv.trajectory import StopReason

FAULTS = InjectConfig(env_crash=0.05, env_hang=0.02, slow_env=0.05, engine_error=0.02, engine_hang=0.01)


class Inline(Fragile):
    executor = "inline"


async def run(
    eta: float, batch: int, size: int, concurrency: int, seed: int, steps: int, **redundancy: int
) -> tuple[list[Batch], bool]:
    """Trains `steps` versions, each for a random time while rollouts go on; returns the batches, and whether the ledger
    balanced whenever one was taken."""
    draw = random.Random(seed)
    engine = ScriptedEngine(babbles, seconds_per_token=0.2)
    play = model_play(
        lambda: Inline(lambda task, tried: "", Counter(), threading.Event()),
        engine,
        reset_seconds=3.0,
        step_seconds=3.0,
        generate_seconds=5.0,
    )
    play = replace(play, layers=(Chaos(FAULTS, seed, play.limits).layer,))
    scheduler = Scheduler(play, concurrency, give_up_after=10**6)
    source = InOrder(TaskOrder([f"t{i}" for i in range(20)], seed))
    buffer = SampleBuffer(BatchPlan(batch, size, eta, "keep", **redundancy), source, seed)
    controller = RolloutController(scheduler, buffer)
    batches, balanced = [], True
    for version in range(steps):
        batches.append(await controller.next_batch())
        balanced = balanced and scheduler.ledger.balanced
        await asyncio.sleep(draw.uniform(0, 4))
        await engine.update_weights(version + 1, {})
        controller.weights_updated(version + 1)
    await scheduler.close()
    return batches, balanced and scheduler.ledger.balanced and scheduler.ledger.in_flight == 0


@settings(max_examples=25)
@given(
    st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 24),
    st.integers(0, 10**6),
    st.integers(0, 2),
    st.integers(0, 2),
)
def test_no_token_older_than_the_bound_trains_and_nothing_that_failed(
    eta: float, batch: int, size: int, concurrency: int, seed: int, groups: int, samples: int
) -> None:
    """Also where more is begun than is needed, and cancelled."""
    work = run(eta, batch, size, concurrency, seed, steps=8, extra_groups=groups, extra_samples=samples)
    batches, balanced = run_jumping(work)
    assert balanced
    assert [b.version for b in batches] == list(range(8))
    trained = [group for b in batches for group in b.groups]
    indices = [group.request.index for group in trained]
    assert len(set(indices)) == len(indices) == 8 * batch
    for b in batches:
        assert len(b.groups) == batch
        histogram = staleness_histogram(b.groups, b.version)
        assert all(0 <= age <= math.ceil(eta) for age, count in histogram if count)
        for group in b.groups:
            assert len(group.trajectories) == size
            assert all(t.stop is StopReason.TERMINATED and t.failure is None for t in group.trainable)
            assert all(t.failure is not None for t in group.trajectories if not t.trainable)
