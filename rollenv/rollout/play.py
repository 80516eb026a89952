"""Ways to play an episode request: a model through an engine, or a program. What a scheduler is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollenv.agents.base import ChatAgent, ScriptedAgent
from rollenv.inference.base import Engine, SamplingParams
from rollenv.inference.chat import ChatFormat
from rollenv.inference.endpoint import Endpoint
from rollenv.rollout.endpoint_player import EndpointPlayer
from rollenv.rollout.env_pool import Environments
from rollenv.rollout.episode import (
    Demonstrator,
    EpisodeLimits,
    EpisodeRequest,
    Fault,
    ModelPlayer,
    Player,
    ScriptedPlayer,
    describe,
    failed_to_begin,
    never_begun,
    play_episode,
)
from rollenv.rollout.layers import Layer, Layers, MakeLayer
from rollenv.rollout.replay import Replayer
from rollenv.seeding import derive_seed
from rollenv.trajectory import FaultPlace, StopReason, Trajectory

Play = Callable[[EpisodeRequest], Coroutine[Any, Any, Trajectory]]
"""Plays one attempt; returns its trajectory whatever happens, and `ABORTED` when it is cancelled."""


def session_name(label: str, request: EpisodeRequest) -> str:
    """What an attempt is called in the engine; no two of a run are called the same."""
    life = f"/{request.life}" if request.life else ""
    return f"{label}/{request.group}/{request.place}/{request.attempt}{life}"


@dataclass(frozen=True, slots=True)
class ModelPlay:
    """Plays requests with a language model. `label` keeps its sessions apart from others' in the same engine;
    `layers` stand between each episode and its world (see `rollenv.rollout.layers`)."""

    pool: Environments
    env_name: str
    agent: ChatAgent
    engine: Engine
    chat: ChatFormat
    sampling: SamplingParams
    limits: EpisodeLimits
    label: str = "train"
    layers: tuple[MakeLayer, ...] = ()

    async def __call__(self, request: EpisodeRequest) -> Trajectory:
        session = session_name(self.label, request)
        layers = Layers(self.layers, request)
        engine = layers.engine(self.engine)

        def player() -> Player:
            return ModelPlayer(self.agent, engine, self.chat, self.sampling, request, self.limits, session)

        return await play_with_env(self.pool, player, request, self.limits, self.env_name, layers)


@dataclass(frozen=True, slots=True)
class EndpointPlay:
    """Plays requests with a model behind a server, which has no tokens for us, only texts.

    Args:
        asked: what every request says (`temperature`, `max_tokens`, ...).
    """

    pool: Environments
    env_name: str
    agent: ChatAgent
    endpoint: Endpoint
    asked: Mapping[str, Any]
    limits: EpisodeLimits
    layers: tuple[MakeLayer, ...] = ()

    async def __call__(self, request: EpisodeRequest) -> Trajectory:
        def player() -> Player:
            return EndpointPlayer(self.agent, self.endpoint, self.asked, request.seed, self.limits)

        layers = Layers(self.layers, request)
        return await play_with_env(self.pool, player, request, self.limits, self.env_name, layers)


@dataclass(frozen=True, slots=True)
class ScriptedPlay:
    """Plays requests with a program; `make_agent` gives a fresh one per episode."""

    pool: Environments
    env_name: str
    make_agent: Callable[[], ScriptedAgent]
    limits: EpisodeLimits
    layers: tuple[MakeLayer, ...] = ()

    async def __call__(self, request: EpisodeRequest) -> Trajectory:
        def player() -> Player:
            return ScriptedPlayer(self.make_agent(), derive_seed(request.seed, "agent"))

        layers = Layers(self.layers, request)
        return await play_with_env(self.pool, player, request, self.limits, self.env_name, layers)


@dataclass(frozen=True, slots=True)
class DemonstrationPlay:
    """Plays requests with a program, writing down what `agent`'s model would have read and written."""

    pool: Environments
    env_name: str
    make_expert: Callable[[], ScriptedAgent]
    agent: ChatAgent
    chat: ChatFormat | None
    limits: EpisodeLimits
    on_text: Callable[[str], None] = lambda text: None

    async def __call__(self, request: EpisodeRequest) -> Trajectory:
        def player() -> Player:
            seed = derive_seed(request.seed, "agent")
            return Demonstrator(self.make_expert(), seed, self.agent, self.chat, self.on_text)

        return await play_with_env(self.pool, player, request, self.limits, self.env_name, Layer())


async def play_again(pool: Environments, env_name: str, recorded: Trajectory, limits: EpisodeLimits) -> Trajectory:
    """Plays the actions of an episode again, from its seed, to where it ended or ends now. It gets the turns it had,
    whatever `limits` say of them."""
    request = EpisodeRequest(recorded.task, recorded.seed, recorded.group, recorded.sample)
    limits = replace(limits, max_turns=len(recorded.turns), max_tokens=None)
    again = await play_with_env(pool, lambda: Replayer(recorded), request, limits, env_name, Layer())
    if again.stop is StopReason.MAX_TURNS and recorded.stop is StopReason.MAX_TOKENS:
        again.stop = recorded.stop  # that was the limit that kept it from going on
    return again


async def play_with_env(
    pool: Environments,
    make_player: Callable[[], Player],
    request: EpisodeRequest,
    limits: EpisodeLimits,
    env_name: str,
    layers: Layer,
) -> Trajectory:
    """Plays a request in an environment of the pool, which has it back afterwards."""
    try:
        trajectory = await _played(pool, make_player, request, limits, env_name, layers)
    except BaseException:  # its player was itself torn down: it counts as cancelled
        layers.ended(Trajectory(env_name, request.task, request.seed, request.group, request.sample, request.attempt))
        raise
    layers.ended(trajectory)
    return trajectory


async def _played(
    pool: Environments,
    make_player: Callable[[], Player],
    request: EpisodeRequest,
    limits: EpisodeLimits,
    env_name: str,
    layers: Layer,
) -> Trajectory:
    where: FaultPlace = "agent"
    try:
        player = make_player()
        where = "env"
        env = await pool.acquire()
    except asyncio.CancelledError:  # while it waited for an environment
        return never_begun(request, env_name)
    except Exception as error:
        return failed_to_begin(request, env_name, Fault(where, "crash", describe(error)))
    healthy = False
    try:
        trajectory = await play_episode(layers.env(env), player, request, pool.limits(limits), env_name)
        # A thread may still be inside the environment of a failed or cancelled episode.
        healthy = trajectory.stop not in (StopReason.FAILED, StopReason.ABORTED)
    finally:
        pool.release(env, healthy)
    return trajectory
