"""The simulated environment and player behind the real `play_episode`, and what the episodes cost."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

from rollenv.agents.base import Step
from rollenv.config.rollout import RolloutConfig
from rollenv.core import TextEnv
from rollenv.rollout.episode import EpisodeLimits, EpisodeRequest, guarded, play_episode
from rollenv.simulation.clock import sleep
from rollenv.simulation.engine import SimulatedEngine
from rollenv.simulation.plans import EpisodePlan, World
from rollenv.trajectory import StopReason, Trajectory, Turn


class SimulatedEnv(TextEnv):
    """Sleeps as its plan says; the last step is worth 1 when the episode is solved."""

    def __init__(self, plan: EpisodePlan, loop: asyncio.AbstractEventLoop) -> None:
        self._plan, self._loop = plan, loop
        self._turn = 0

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self._turn = 0
        await sleep(self._loop, self._plan.reset)
        return "", {}

    async def astep(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        plan = self._plan
        seconds = plan.steps[self._turn]
        self._turn += 1
        if seconds > 0:
            await sleep(self._loop, seconds)
        if self._turn < len(plan.steps):
            return "", 0.0, False, False, _NOTHING
        return "", float(plan.success), True, False, {"success": plan.success}


_NOTHING: dict[str, Any] = {}


class SimulatedPlayer:
    """Lets the engine's model work for each turn. Of the tokens only their number is there, and `policy_versions` has
    one entry per version instead of one per token."""

    def __init__(self, plan: EpisodePlan, engine: SimulatedEngine, seconds: float | None) -> None:
        self._plan, self._engine, self._seconds = plan, engine, seconds

    async def act(self, history: list[Step], turn: Turn) -> str:
        index, plan = len(history) - 1, self._plan
        with guarded("engine", self._seconds, "generate"):
            turn.policy_versions = await self._engine.generate(plan.generate[index])
        # A range counts as many tokens as a list would, in no memory.
        turn.completion_ids = cast(list[int], range(plan.tokens[index]))
        return ""

    async def close(self, aborted: bool) -> None:
        return None


@dataclass(slots=True)
class Costs:
    """What the episodes of a simulation cost so far, in episodes, turns, tokens and virtual seconds in flight."""

    turns: int = 0
    seconds: float = 0.0
    cancelled_seconds: float = 0.0
    tokens: int = 0
    cancelled: int = 0
    lengths: list[float] = field(default_factory=list)
    """Seconds of each episode that ended."""

    def add(self, trajectory: Trajectory, seconds: float) -> None:
        """Books an episode that is over."""
        self.turns += len(trajectory.turns)
        self.seconds += seconds
        self.tokens += trajectory.n_completion_tokens
        if trajectory.stop in (StopReason.ABORTED, StopReason.FAILED):
            self.cancelled += 1
            self.cancelled_seconds += seconds
        else:
            self.lengths.append(seconds)


@dataclass(slots=True)
class SimulatedPlay:
    """Plays requests: what the real scheduler is given. `costs` counts what was played."""

    world: World
    engine: SimulatedEngine
    limits: EpisodeLimits
    costs: Costs = field(default_factory=Costs)

    async def __call__(self, request: EpisodeRequest) -> Trajectory:
        loop = self.engine.loop
        began, plan = loop.time(), self.world.plan(request)
        player = SimulatedPlayer(plan, self.engine, self.limits.generate_seconds)
        trajectory = await play_episode(SimulatedEnv(plan, loop), player, request, self.limits, "simulated")
        self.costs.add(trajectory, loop.time() - began)
        return trajectory


def simulated_limits(config: RolloutConfig) -> EpisodeLimits:
    """The bounds of an episode; those of its tokens mean nothing here."""
    return EpisodeLimits(
        max_turns=config.max_turns,
        reset_seconds=config.reset_seconds,
        step_seconds=config.step_seconds,
        generate_seconds=config.generate_seconds,
        episode_seconds=config.episode_seconds,
    )
