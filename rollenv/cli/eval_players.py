"""Who plays in an evaluation: a program, a model through an engine, or a model behind a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollenv.config import TrainConfig
    from rollenv.config.rollout import RolloutConfig
    from rollenv.gateway.harness import Door
    from rollenv.inference.endpoint import Endpoint
    from rollenv.registration import EnvSpec
    from rollenv.rollout.env_pool import Environments
    from rollenv.rollout.episode import EpisodeLimits
    from rollenv.rollout.layers import MakeLayer
    from rollenv.rollout.play import Play
    from rollenv.rollout.timeline import Timeline

Close = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Who plays where. `model` is None for an agent that is a program; with an `endpoint` it is a name there."""

    config: TrainConfig
    spec: EnvSpec
    agent_name: str
    agent: dict[str, Any]
    model: str | None
    endpoint: Endpoint | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """What to play and where to leave the results."""

    split: str
    episodes: int | None
    samples: int
    temperature: float
    seed: int
    out: Path | None
    by: str | None = None
    timeline: bool = False
    sha256: str = ""
    """How the hash of the tasks has to begin."""


def _layers(plan: Plan, order: Order, limits: EpisodeLimits, timeline: Timeline | None) -> tuple[MakeLayer, ...]:
    """What stands between episodes and the world: injected faults next to it, who draws them in front."""
    from rollenv.rollout.chaos import Chaos

    chaos = Chaos(plan.config.inject, order.seed, limits) if plan.config.inject.active else None
    return tuple(each.layer for each in (chaos, timeline) if each is not None)


@dataclass(frozen=True, slots=True)
class Scene:
    """An agent, what its environments are made with, and where a program in a sandbox finds the model."""

    agent: Any
    env_args: Mapping[str, Any]
    rollout: RolloutConfig
    door: Door | None = None

    @classmethod
    def of(cls, plan: Plan) -> Scene:
        """That of an evaluation."""
        from rollenv.agents import make_agent
        from rollenv.agents.harness import Harness

        agent, env_args = make_agent(plan.spec, plan.agent_name, plan.agent), plan.config.env_args
        if not isinstance(agent, Harness):
            return cls(agent, env_args, plan.config.rollout)
        from rollenv.gateway.harness import Door

        door = Door()
        return cls(agent, agent.environment(env_args, door.port), agent.patience(plan.config.rollout), door)


def player_of(
    plan: Plan, order: Order, scene: Scene, pool: Environments, timeline: Timeline | None
) -> tuple[Play, Close]:
    """How to play an episode, and how to close what that needs."""
    from rollenv.agents import make_agent
    from rollenv.rollout.play import ScriptedPlay
    from rollenv.rollout.setup import episode_limits

    if plan.endpoint is not None:
        return _endpoint_player(plan, order, scene, pool, plan.endpoint, timeline)
    if plan.model is not None:
        return _model_player(plan, order, scene, pool, plan.model, timeline)

    async def nothing() -> None:
        return None

    def fresh_agent() -> Any:
        return make_agent(plan.spec, plan.agent_name, plan.agent)

    limits = episode_limits(plan.config.rollout, plan.spec)
    return ScriptedPlay(pool, plan.spec.id, fresh_agent, limits, _layers(plan, order, limits, timeline)), nothing


def _model_player(
    plan: Plan, order: Order, scene: Scene, pool: Environments, path: str, timeline: Timeline | None
) -> tuple[Play, Close]:
    from rollenv.inference.chat import ChatFormat
    from rollenv.rollout.play import ModelPlay
    from rollenv.rollout.setup import episode_limits, model_engine, sampling_params
    from rollenv.trainers.device import choose_device
    from rollenv.trainers.policy import load_model

    config = plan.config
    device = choose_device(config.device, config.threads)
    model, tokenizer = load_model(path)
    chat = ChatFormat(tokenizer)
    engine = model_engine(model, tokenizer, device, config.rollout, timeline, config.vllm)
    sampling = sampling_params(config.sampling, chat, order.temperature)
    limits = episode_limits(config.rollout, plan.spec, engine.max_length)
    talk = (engine, chat, sampling, limits, "eval", _layers(plan, order, limits, timeline))
    if (door := scene.door) is None:
        return ModelPlay(pool, plan.spec.id, scene.agent, *talk), engine.close
    from rollenv.gateway.harness import HarnessPlay

    async def close() -> None:
        await door.close()
        await engine.close()

    return HarnessPlay(pool, plan.spec.id, scene.agent, door, *talk), close


def _endpoint_player(
    plan: Plan, order: Order, scene: Scene, pool: Environments, endpoint: Endpoint, timeline: Timeline | None
) -> tuple[Play, Close]:
    from rollenv.rollout.play import EndpointPlay
    from rollenv.rollout.setup import episode_limits

    sampling = plan.config.sampling
    asked = {"temperature": order.temperature, "max_tokens": sampling.max_tokens}
    asked |= {"top_p": sampling.top_p} if sampling.top_p < 1 else {}
    limits = episode_limits(plan.config.rollout, plan.spec)
    play = EndpointPlay(
        pool, plan.spec.id, scene.agent, endpoint, asked, limits, _layers(plan, order, limits, timeline)
    )
    return play, endpoint.close
