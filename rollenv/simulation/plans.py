"""What an episode will be like: all its durations and lengths, drawn before it begins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollenv.config.simulate import ScenarioConfig
from rollenv.errors import RollenvError
from rollenv.evaluation.records import episode_lines
from rollenv.rollout.episode import EpisodeRequest
from rollenv.seeding import derive_seed
from rollenv.simulation.latency import counts, draw


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """One episode of T turns. Seconds of the reset and of each step; of each turn the tokens and the seconds that a
    device with little to do needs for them; whether it will be solved."""

    reset: float
    steps: list[float]
    tokens: list[int]
    generate: list[float]
    success: bool

    @property
    def turns(self) -> int:
        """T."""
        return len(self.steps)

    @property
    def seconds(self) -> float:
        """How long it takes when it never waits for the engine."""
        return self.reset + sum(self.steps) + sum(self.generate)


class World:
    """Plans the episodes of a scenario. The same request has the same plan, whoever plays it and whenever; whether one
    that was cancelled as surplus takes another course when it is played again is what `replayed` says.

    Raises:
        RollenvError: the recorded run cannot be read.
    """

    def __init__(self, config: ScenarioConfig) -> None:
        self._env, self._engine = config.env, config.engine
        self._seed, self._size = config.seed, config.rollout.group_size
        self._recorded = recorded(Path(config.replay)) if config.replay else []
        self._exactly, self._redraws = config.replay_exactly, config.replayed == "redrawn"
        self._success: dict[str, float] = {}

    def plan(self, request: EpisodeRequest) -> EpisodePlan:
        """What happens in an episode (whichever attempt it is)."""
        if self._exactly and self._recorded:
            return self._recorded[(request.group * self._size + request.sample) % len(self._recorded)]
        again = request.life if self._redraws else 0
        seed = derive_seed(request.seed, "life", again) if again else request.seed
        generator = np.random.default_rng(seed)
        if self._recorded:
            return self._recorded[int(generator.integers(len(self._recorded)))]
        env, engine = self._env, self._engine
        slow, luck = generator.random(2)
        factor = env.slow_factor if slow < env.slow_probability else 1.0
        turns = int(counts(env.turns, generator, 1)[0])
        reset = float(draw(env.reset, generator, 1)[0])
        steps = draw(env.step, generator, turns)
        tokens = counts(engine.tokens, generator, turns)
        rate = engine.tokens_per_second
        generate = [0.0] * turns if rate is None else (tokens / rate).tolist()
        solved = bool(luck < self.success_rate(request.task))
        return EpisodePlan(reset * factor, (steps * factor).tolist(), tokens.tolist(), generate, solved)

    def success_rate(self, task: str) -> float:
        """How often a task is solved: decided by the scenario's seed and the task's name."""
        rate = self._success.get(task)
        if rate is None:
            mean, spread = self._env.mean_success, self._env.difficulty_spread
            rate = mean
            if spread > 0 and 0 < mean < 1:
                k = 1 / spread - 1
                generator = np.random.default_rng(derive_seed(self._seed, "difficulty", task))
                rate = float(generator.beta(mean * k, (1 - mean) * k))
            self._success[task] = rate
        return rate


def recorded(file: Path) -> list[EpisodePlan]:
    """The episodes of a run's `trajectories.jsonl`, as they were timed.

    Raises:
        RollenvError: it cannot be read, or its turns carry no `seconds`.
    """
    plans = []
    try:
        for number, episode in enumerate(episode_lines(file), 1):
            try:
                plans.append(_plan_of(episode))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                reason = f"no {error}" if isinstance(error, KeyError) else str(error)
                raise ValueError(f"line {number} is no episode with timed turns: {reason}") from error
    except OSError as error:
        raise RollenvError(f"cannot read the recorded run '{file}': {error.strerror}") from error
    except ValueError as error:
        raise RollenvError(f"{file}, {error}") from error
    plans = [plan for plan in plans if plan.turns]
    if not plans:
        raise RollenvError(f"{file} has no episode with turns: record one with 'rollenv eval --out DIR'")
    return plans


def _plan_of(episode: dict[str, Any]) -> EpisodePlan:
    turns = episode["turns"]
    steps = [float(turn["seconds"]["env"]) for turn in turns]
    generate = [float(turn["seconds"]["generate"]) for turn in turns]
    if any(not 0 <= seconds < float("inf") for seconds in [*steps, *generate]):
        raise ValueError("a duration is negative or endless")
    tokens = [max(1, len(turn["completion_ids"])) for turn in turns]
    return EpisodePlan(0.0, steps, tokens, generate, bool(episode["success"]))
