"""A training run: rollouts feed the trainer, the trainer feeds the engine; figures, panels and checkpoints beside.

Invariant: at a step boundary the run is its checkpoint: config, step, weights, optimizer, generators, cursor, ledger.
A run that continues from one equals a run that was never interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rollenv.agents.harness import Harness
from rollenv.config.train import TrainConfig
from rollenv.errors import RollenvError
from rollenv.evaluation.evaluate import Summary, play_panel, summarize
from rollenv.files import write_atomically
from rollenv.inference import optional
from rollenv.inference.base import EngineError
from rollenv.rollout.bias import BiasReport
from rollenv.rollout.buffer import SampleBuffer
from rollenv.rollout.chaos import Chaos
from rollenv.rollout.controller import RolloutController
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.figures import batch_figures, latency_figures, waste_figures
from rollenv.rollout.layers import MakeLayer
from rollenv.rollout.ledger import Ledger
from rollenv.rollout.play import ModelPlay, Play
from rollenv.rollout.scheduler import Scheduler
from rollenv.rollout.setup import batch_plan, episode_limits, sampling_params
from rollenv.rollout.timeline import TRAINER, Timeline, span
from rollenv.seeding import derive_seed
from rollenv.trainers import checkpoint
from rollenv.trainers.credit import chosen
from rollenv.trainers.data import trained_return
from rollenv.trainers.health import CollapseDetector
from rollenv.trainers.learner import TrainJob
from rollenv.trainers.metrics import MetricsWriter
from rollenv.trainers.parts import Parts, local_parts
from rollenv.trainers.trackers import found_trackers
from rollenv.trainers.world import World, Worlds, algorithms, branching

T = TypeVar("T")
log = logging.getLogger(__name__)

MOST_AGE = 2
"""Versions up to which WebShop's default job trains as well without a weight for old tokens (`time_to_success.py`)."""

OnFigures = Callable[[str, dict[str, Any]], None]
"""Called with ("step" | "eval" | "checkpoint", figures) as the run goes."""


@dataclass(slots=True, eq=False)
class Interrupted(Exception):
    """The run was asked to stop; `folder` is the checkpoint to continue from."""

    folder: Path
    step: int


def _warn_of_age(config: TrainConfig) -> None:
    if config.rollout.eta > MOST_AGE and not all(algo.heeds_age for algo in algorithms(config).values()):
        log.warning(
            "rollout.eta=%g: tokens of versions so far back train as if they were new, which may ruin the policy: "
            "algo.proximal=sampler clips them, algo=decoupled_ppo weighs them (docs/algorithms.md)",
            config.rollout.eta,
        )


class TrainRun:
    """Everything of one run, made ready by `open`, played by `train`.

    Args:
        config: the run's settings; `config.out` must be set.
        model: the model folder or hub name to start from.
        resume: a checkpoint to continue from.
        on_figures: gets figures as they come.
        timeline: draws the run when given; its owner closes it, as another run may go on with it.
        parts: what learns and what generates, when they are not in this process.
    """

    def __init__(
        self,
        config: TrainConfig,
        model: str | Path,
        resume: checkpoint.Checkpoint | None = None,
        on_figures: OnFigures = lambda kind, figures: None,
        timeline: Timeline | None = None,
        parts: Parts | None = None,
    ) -> None:
        if config.out is None:
            raise ValueError("a run needs config.out")
        trackers = found_trackers(config.track)
        self.config, self._on_figures, self._timeline = config, on_figures, timeline
        self.folder = Path(config.out)
        checkpoint.sweep(self.folder)
        self._model = str(model)
        self._stop = asyncio.Event()
        self.step = 0
        self._amid_step = False  # from a batch that was taken to the figures of its step: no state to go on from
        self._result: dict[str, Any] = {}
        self._figures: dict[str, Any] | None = None  # of a step whose evaluation is still to come
        self._health = CollapseDetector(config.health)
        self._collapse: str | None = None
        _warn_of_age(config)
        self.worlds = Worlds(config)
        try:
            job = TrainJob(config, self._model, resume, algorithms(config))
            self._parts = parts or local_parts(job, timeline)
            self.learner, self.engine = self._parts.learner, self._parts.engine
            self._prepare_rollouts(resume)
            settings = config.model_dump(mode="json")
            after, due = self.step if resume else None, self._figures is not None or self.step == 0
            self._metrics = MetricsWriter(self.folder, after, trackers, config.track_project, settings, due)
            kept = config.checkpoint
            self._writer = checkpoint.Writer(self.folder, kept.keep, kept.upload, self._on_checkpoint)
        except BaseException:
            self.worlds.close()  # their processes are running already
            raise

    # -- preparation ---------------------------------------------------------------------------------------

    def _prepare_rollouts(self, resume: checkpoint.Checkpoint | None) -> None:
        config, state = self.config, resume.state() if resume else None
        ledger = Ledger.from_dict(state["ledger"]) if state else Ledger()
        # What was in flight died with the last process. No step has cancelled it.
        self._boundary = Ledger.from_dict(state["boundary"]) if state else Ledger()
        self._boundary.cancelled += ledger.in_flight
        ledger.abandon()
        bias = BiasReport()
        self.scheduler = Scheduler(
            self.worlds.play(lambda world: self._play(world, "train", config.sampling.temperature)),
            self.worlds.concurrency(config.rollout.concurrency),
            config.rollout.max_attempts,
            ledger,
            straggler_seconds=config.rollout.straggler_seconds,
            on_episode=bias.ended,
            branching=branching(config),
        )
        if self._timeline is not None:
            self._timeline.queue_depth = lambda: self.scheduler.queued
        algos = algorithms(config)
        plan = batch_plan(
            config.rollout,
            lambda t: trained_return(t, algos.get(t.env, config.algo)),
            lambda groups: chosen(groups, lambda env: algos.get(env, config.algo)),
        )
        buffer = SampleBuffer(plan, self.worlds.source(config), config.seed)
        self.controller = RolloutController(self.scheduler, buffer, bias)
        if resume is not None and state is not None:
            self._check_resumed(state)
            self.step, self._figures = int(state["step"]), state["figures"]
            self.controller.load_state_dict(resume.rollouts())
            if self.controller.version != self.step:
                raise RollenvError(
                    f"'{resume.folder}' was written amid step {self.step}, by an earlier rollenv: remove it, and "
                    "--resume goes on from the one before"
                )
            if "health" in state:
                self._health.load_state_dict(state["health"])
                self._collapse = state["collapse"]

    def _check_resumed(self, state: dict[str, Any]) -> None:
        here = self.worlds.tasks_sha256
        if state["tasks_sha256"] != here:
            raise RollenvError(
                f"the tasks of split '{self.config.split}' are not those of the checkpoint "
                f"(sha256 {here[:12]}, it had {state['tasks_sha256'][:12]}): give the same data"
            )

    def _play(self, world: World, label: str, temperature: float) -> Play:
        config, chat = self.config, self.learner.chat
        limits = episode_limits(config.rollout, world.spec, self.engine.max_length)
        sampling = sampling_params(config.sampling, chat, temperature)
        layers = self._layers(limits)
        talk = (self.engine, chat, sampling, limits, label, layers)
        if isinstance(world.agent, Harness):
            from rollenv.gateway.harness import HarnessPlay  # a web server: for these runs only

            assert world.door is not None
            return HarnessPlay(world.pool, world.spec.id, world.agent, world.door, *talk)
        return ModelPlay(world.pool, world.spec.id, world.agent, *talk)

    def _layers(self, limits: EpisodeLimits) -> tuple[MakeLayer, ...]:
        """What stands between episodes and the world: injected faults next to it, who draws them in front."""
        chaos = Chaos(self.config.inject, self.config.seed, limits) if self.config.inject.active else None
        return tuple(each.layer for each in (chaos, self._timeline) if each is not None)

    # -- the run -------------------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """Asks the run to write a checkpoint and raise `Interrupted` as soon as it can."""
        self._stop.set()

    async def train(self) -> dict[str, Any]:
        """Trains to the last step and returns the figures of the last evaluation.

        Raises:
            Interrupted: it was asked to stop; a checkpoint has been written.
            RollenvError: episodes fail and fail, or the policy collapses and `health.action` is `stop` (a checkpoint
                has been written in both cases), or the disk is full, or a step could not be carried through: the last
                checkpoint is then of a step before it.
        """
        try:
            await self._send_weights()
            if self.step == 0:
                self._figures = {"step": 0}
            if self._figures is not None:
                await self._finish_step()
                self._stop_if_collapsed()
            while self.step < self.config.steps:
                self._writer.check()
                await self.learner.ensure_stays()
                self._figures = await self._one_step()
                self._amid_step = False
                await self._finish_step()
                self._stop_if_collapsed()
            await self._writer.settled()
            return self._result
        except RollenvError:
            # What was trained since the last checkpoint is not lost with the environment that broke.
            with contextlib.suppress(RollenvError):
                await self._writer.settled()
            known = any(kept.step == self.step for kept in checkpoint.found(self.folder))
            if self.step and not known and not self._amid_step:
                with contextlib.suppress(RollenvError):
                    await self._written_checkpoint()
            raise
        finally:
            with contextlib.suppress(RollenvError):
                await self._writer.settled()
            await self.scheduler.close()
            await self.worlds.close_doors()
            await self._parts.close()
            self.worlds.close()
            self._metrics.close()
            if self._timeline is not None:
                self._timeline.flush()

    def _on_checkpoint(self, written: checkpoint.Checkpoint) -> None:
        self._on_figures("checkpoint", {"step": written.step, "folder": str(written.folder)})

    def _due(self, every: int) -> bool:
        return self.step == self.config.steps or (every > 0 and self.step % every == 0)

    async def _finish_step(self) -> None:
        """Evaluation, figures and checkpoint of the step just made, whichever are due."""
        figures = self._figures
        assert figures is not None
        if self._due(self.config.eval.every) or self.step == 0:
            with span(self._timeline, "evaluation", step=self.step):
                self._result = await self._evaluate()
            figures = {"success": self._result["eval_success"], "reward": self._result["eval_reward"]} | (
                {"seconds": self._result["eval_seconds"]} | figures | self._result
            )
        self._metrics.write(figures)
        self._figures = None
        if self.step and self._due(self.config.checkpoint.every):
            await self._checkpoint()

    async def _one_step(self) -> dict[str, Any]:
        with span(self._timeline, f"step {self.step + 1}"):
            began, queue = time.perf_counter(), self.scheduler.queued
            with span(self._timeline, "rollout wait"):
                batch = await self._interruptible(self.controller.next_batch())
            self._amid_step = True
            # Here, not as groups finish: what a seed decides must not depend on who was first.
            for task in self.worlds.book(batch):
                log.warning("task '%s' is in quarantine: its episodes failed for good too often", task)
            queues = {"queue_begin": float(queue), "queue_end": float(self.scheduler.queued)}
            played = time.perf_counter()
            if self.config.devices.share:  # the engines' memory is wanted
                await optional.sleep(self.engine)
            with span(self._timeline, "train", groups=len(batch.groups)):
                figures: dict[str, Any] = await self.learner.step(batch.groups)
            trained = time.perf_counter()
            self.step += 1
            with span(self._timeline, "weight sync", version=self.step):
                if self.config.devices.share:
                    figures["offloaded_mib"] = await self.learner.offload() / 2**20
                    await optional.wake(self.engine)  # before it is waited for
                await self._hand_over_weights()
        self._metrics.write_groups(self.step, batch)
        if self.config.trajectories and self.step % self.config.trajectories == 0:
            self._metrics.keep_trajectories(self.step, batch, await self.learner.advantages())
        seconds = {"seconds": time.perf_counter() - began, "rollout_seconds": played - began}
        figures |= batch_figures(batch) | seconds | {"train_seconds": trained - played}
        figures["tokens_per_second"] = figures["tokens"] / figures["seconds"]
        figures |= latency_figures([t for group in batch.played for t in group.trajectories]) | queues
        figures["tasks_in_quarantine"] = self.worlds.in_quarantine
        figures = {"step": self.step, **figures, **self._ledger_figures()}
        await self._judge(figures)
        self._draw_figures(figures)
        self._on_figures("step", figures)
        return figures

    async def _judge(self, figures: dict[str, Any]) -> None:
        """Looks for signs of a collapse, and acts as `health.action` says; a stop waits until the step is written."""
        self._collapse = self._health.observe(figures)
        figures["collapse_signs"] = self._health.signs
        if self._collapse is None or self.config.health.action == "stop":
            return
        if self.config.health.action == "slow":
            scale = await self.learner.slow_down(self.config.health.slow_factor)
            log.warning("%s: the learning rate is now %g of what it was to be", self._collapse, scale)
        else:
            log.warning("%s", self._collapse)

    async def _hand_over_weights(self) -> None:
        finish = self.config.rollout.on_update == "finish"
        if finish:
            await self.scheduler.drain()
        await self._send_weights()
        if finish:
            self.scheduler.go_on()
        self.controller.weights_updated(self.step)

    async def _send_weights(self) -> None:
        try:
            await self.engine.update_weights(self.step, await self.learner.weights())
        except EngineError as error:
            await self.learner.ensure_lives()  # engines may have fetched them from one who died
            raise RollenvError(
                f"no engine takes the weights of step {self.step}: {error}; continue with --resume {self.folder}"
            ) from error

    def _ledger_figures(self) -> dict[str, float]:
        """What the ledger says of the whole run, and of the step that ends here, which is a boundary."""
        ledger, before = self.scheduler.ledger, self._boundary
        self._boundary = Ledger.from_dict(ledger.to_dict())
        totals = ("failed", "discarded", "retried", "wasted_tokens")
        return {f"episodes_{name}": getattr(ledger, name) for name in totals} | waste_figures(before, ledger)

    def _stop_if_collapsed(self) -> None:
        if self._collapse is not None and self.config.health.action == "stop":
            raise RollenvError(
                f"{self._collapse}: the run in '{self.folder}' stops, as health.action says; begin anew from one of "
                "its checkpoints with other settings (--model CHECKPOINT/model), or go on all the same with "
                f"--resume {self.folder} health.action=warn"
            )

    def _draw_figures(self, figures: dict[str, Any]) -> None:
        if self._timeline is not None:
            mean, most = figures["staleness_mean"], figures["staleness_max"]
            self._timeline.counter(TRAINER, "staleness", mean=mean, max=most)
            self._timeline.flush()

    async def _interruptible(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work`; when a stop is asked for first, checkpoints the state of the last boundary and raises."""
        if self._stop.is_set():  # here: work that is done at once would win against the stop, again and again
            work.close()
            raise Interrupted((await self._written_checkpoint()).folder, self.step)
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():  # also when a stop was asked for just now: the next wait will see it
                return task.result()
            raise Interrupted((await self._written_checkpoint()).folder, self.step)
        finally:
            stop.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _evaluate(self) -> dict[str, Any]:
        """The figures of the panels: bare for the run's first world, with its name behind them for any other."""
        figures: dict[str, Any] = {}
        for world in self.worlds.all:
            behind = f"/{world.spec.name}" if figures else ""
            figures |= {f"{name}{behind}": value for name, value in (await self._play_panel(world)).items()}
        self._on_figures("eval", {"step": self.step, **figures})
        return figures

    async def _play_panel(self, world: World) -> dict[str, Any]:
        config, began = self.config, time.perf_counter()
        play = self._play(world, f"eval-{self.step}{world.name}", config.eval.temperature)
        work = play_panel(play, world.panel, derive_seed(config.seed, "eval"), config.rollout.concurrency)
        summary: Summary = summarize(world.spec.id, world.panel, await self._interruptible(work))
        return {
            "eval_success": summary.success_rate,
            "eval_ci95": list(summary.ci95),
            "eval_reward": summary.mean_reward,
            "eval_turns": summary.mean_turns,
            "eval_episodes": summary.episodes,
            "eval_failed": summary.failed,
            "eval_tasks_sha256": summary.tasks_sha256,
            "eval_seconds": time.perf_counter() - began,
        }

    async def _checkpoint(self) -> None:
        """Begins to write a checkpoint of the step just made."""
        with span(self._timeline, "checkpoint", step=self.step):
            write_atomically(self.folder / "bias.json", [json.dumps(self.controller.bias.rows(), indent=1)])
            await self._writer.begin(self.step, self.learner, checkpoint.files_of(*self._state()))

    async def _written_checkpoint(self) -> checkpoint.Checkpoint:
        """Writes one and waits for it."""
        await self._checkpoint()
        written = await self._writer.settled()
        assert written is not None
        return written

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        state = {
            "step": self.step,
            "config": self.config.model_dump(mode="json"),
            "model": self._model,
            "ledger": self.scheduler.ledger.to_dict(),
            "boundary": self._boundary.to_dict(),
            "tasks_sha256": self.worlds.tasks_sha256,
            "figures": self._figures,
            "health": self._health.state_dict(),
            "collapse": self._collapse,
        }
        return state, self.controller.state_dict()
