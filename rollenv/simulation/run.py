"""A scenario played to its end: the real scheduler and controller, or a baseline, between models of everything else.

The loop around them is that of a training run: batch, training, new weights, next batch.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rollenv.config.simulate import ScenarioConfig
from rollenv.rollout.buffer import Batch, SampleBuffer
from rollenv.rollout.controller import RolloutController
from rollenv.rollout.ledger import Ledger
from rollenv.rollout.scheduler import Scheduler
from rollenv.rollout.selection import episode_return
from rollenv.rollout.setup import batch_plan, task_source
from rollenv.seeding import TaskOrder, derive_seed
from rollenv.simulation.baselines import BatchLoop, batch_by_device, lock_step
from rollenv.simulation.bounds import best_share, step_seconds_bound
from rollenv.simulation.clock import run_virtual
from rollenv.simulation.engine import SimulatedEngine
from rollenv.simulation.latency import mean_of
from rollenv.simulation.plans import World
from rollenv.simulation.play import Costs, SimulatedPlay, simulated_limits
from rollenv.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation measured. Seconds are virtual; shares are in [0, 1].

    Attributes:
        seconds: of the whole run.
        step_seconds: of each training step, from one update of the weights to the next.
        rollout_seconds: the part of each step in which the trainer waited for its batch.
        episodes: that ended.
        cancelled: episodes that were cancelled, failed, or ended without being needed.
        turns: of all episodes, cancelled ones included.
        engine: share of what the generating devices could have done.
        trainer: share of the time in which the trainer's devices trained.
        slots: share of the places for episodes that were taken.
        waste: share of the seconds in flight that these spent.
        wasted_tokens: the same of the tokens.
        unused: share of the groups that were played to the end and not trained.
        staleness: versions between the oldest token and its training -> trained groups.
        longest: seconds of the longest episode.
        bound: of the seconds per step, by ROLL Flash's closed form.
        best_share: of the devices to train on, by its closed form.
    """

    seconds: float
    step_seconds: tuple[float, ...]
    rollout_seconds: tuple[float, ...]
    episodes: int
    cancelled: int
    turns: int
    engine: float
    trainer: float
    slots: float
    waste: float
    wasted_tokens: float
    unused: float
    staleness: dict[int, int]
    longest: float
    bound: float
    best_share: float

    @property
    def mean_step(self) -> float:
        """Seconds per training step."""
        return mean_of(self.step_seconds)


class _Feeder(Protocol):
    async def next_batch(self) -> Batch: ...

    def weights_updated(self, version: int) -> None: ...


@dataclass(slots=True)
class _Books(Ledger):
    """A ledger that also knows how long the discarded episodes took, seconds."""

    discarded_seconds: float = 0.0

    def discard(self, trajectory: Trajectory) -> None:
        Ledger.discard(self, trajectory)  # super() does not know a class with slots, which is made twice
        self.discarded_seconds += sum(sum(turn.seconds.values()) for turn in trajectory.turns)


class Simulation:
    """One scenario without variants. Everything is made in the loop that it runs in: see `simulate`."""

    def __init__(self, config: ScenarioConfig) -> None:
        self._config = config
        self._engine = SimulatedEngine(config.engine, config.devices.generate)
        self._play = SimulatedPlay(World(config), self._engine, simulated_limits(config.rollout))
        settings, self._books = config.rollout, _Books()
        self._scheduler = Scheduler(
            self._play,
            settings.concurrency,
            settings.max_attempts,
            self._books,
            straggler_seconds=settings.straggler_seconds,
        )
        tasks = [f"task-{i}" for i in range(config.env.tasks)]
        self._order = TaskOrder(tasks, derive_seed(config.seed, "tasks"))
        self._feeder = self._make_feeder()
        self._trained = 0.0
        self._groups = Counter[str]()
        self._staleness = Counter[int]()

    def _make_feeder(self) -> _Feeder:
        config, play = self._config, self._play
        match config.loop:
            case "lock_step":
                return BatchLoop(lock_step(play), config, self._order)
            case "batch":
                rollout = batch_by_device(play, config.devices.generate, config.engine.slots)
                return BatchLoop(rollout, config, self._order)
        settings = config.rollout
        source = task_source(settings, self._order, config.seed)
        return RolloutController(
            self._scheduler, SampleBuffer(batch_plan(settings, episode_return), source, config.seed)
        )

    async def run(self) -> Outcome:
        """Plays and trains all steps.

        Raises:
            RollenvError: episodes fail and fail.
        """
        clock = asyncio.get_running_loop().time
        steps, rollouts = [], []
        for step in range(1, self._config.steps + 1):
            began = clock()
            batch = await self._feeder.next_batch()
            rollouts.append(clock() - began)
            self._book(batch)
            await self._train(batch)
            await self._hand_over_weights(step)
            steps.append(clock() - began)
        outcome = self._outcome(steps, rollouts, clock(), self._engine.work_done())
        await self._scheduler.close()
        return outcome

    def _book(self, batch: Batch) -> None:
        self._groups["trained"] += len(batch.groups)
        self._groups["unused"] += len(batch.idle)
        self._staleness.update(batch.staleness)

    async def _train(self, batch: Batch) -> None:
        devices, model = self._config.devices, self._config.trainer
        samples = sum(len(group.trainable) for group in batch.groups)
        seconds = model.epochs * samples * model.seconds_per_sample / (devices.train or devices.total)
        seconds += model.overhead_seconds
        if seconds <= 0:
            return
        if devices.train == 0:  # the same devices generate and train
            self._engine.pause()
        await asyncio.sleep(seconds)
        if devices.train == 0:
            self._engine.resume()
        self._trained += seconds

    async def _hand_over_weights(self, step: int) -> None:
        finish = self._config.rollout.on_update == "finish"
        if finish:
            await self._scheduler.drain()
        await self._engine.update_weights(step)
        if finish:
            self._scheduler.go_on()
        self._feeder.weights_updated(step)

    def _outcome(self, steps: list[float], rollouts: list[float], seconds: float, work: float) -> Outcome:
        config, costs = self._config, self._play.costs
        capacity = config.devices.generate * min(self._engine.capacity, config.engine.slots)
        facts = _facts(config, costs)
        return Outcome(
            seconds=seconds,
            step_seconds=tuple(steps),
            rollout_seconds=tuple(rollouts),
            episodes=len(costs.lengths),
            cancelled=costs.cancelled + self._books.discarded,
            turns=costs.turns,
            engine=work / (seconds * capacity) if seconds else 0.0,
            trainer=self._trained / seconds if seconds else 0.0,
            slots=costs.seconds / (seconds * config.rollout.concurrency) if seconds else 0.0,
            waste=(costs.cancelled_seconds + self._books.discarded_seconds) / max(costs.seconds, 1e-9),
            wasted_tokens=self._books.wasted_tokens / max(costs.tokens, 1),
            unused=self._groups["unused"] / max(1, self._groups.total()),
            staleness=dict(sorted(self._staleness.items())),
            longest=max(costs.lengths, default=0.0),
            bound=step_seconds_bound(**facts) + config.trainer.overhead_seconds + config.engine.update_seconds,
            best_share=best_share(**facts),
        )


def _facts(config: ScenarioConfig, costs: Costs) -> dict[str, Any]:
    """The closed forms' arguments: a slot is one of the places for episodes, shared evenly among all devices. The
    longest episode is the mean of each batch's longest."""
    settings = config.rollout
    samples = settings.groups * settings.group_size
    lengths = costs.lengths or [0.0]
    batches = [lengths[first : first + samples] for first in range(0, len(lengths), samples)]
    slots = settings.concurrency
    return {
        "mean": mean_of(lengths),
        "longest": mean_of(np.array([max(batch) for batch in batches])),
        "slots": slots,
        "samples": samples,
        "alpha": settings.eta,
        "train": config.trainer.seconds_per_sample * slots / config.devices.total,
        "epochs": config.trainer.epochs,
    }


def simulate(config: ScenarioConfig) -> Outcome:
    """Plays a scenario (not its variants) in virtual time.

    Raises:
        RollenvError: the recorded run cannot be read, or episodes fail and fail.
    """

    async def main() -> Outcome:
        return await Simulation(config).run()

    with few_collections():
        return run_virtual(main())


@contextmanager
def few_collections() -> Iterator[None]:
    """Lets Python look for cycles rarely: with thousands of episodes alive it would mostly look at those, again and
    again, and find nothing."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
