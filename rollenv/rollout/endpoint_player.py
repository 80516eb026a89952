"""EndpointPlayer: lets a model behind an OpenAI-compatible server act in one episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollenv.agents.base import ChatAgent, Step
from rollenv.inference.endpoint import Endpoint
from rollenv.rollout.episode import EpisodeLimits, Fault, describe, guarded
from rollenv.seeding import derive_seed
from rollenv.trajectory import Turn


class EndpointPlayer:
    """Shows the model what `agent` renders, and takes as the action what `agent` reads from its answer.

    Args:
        asked: what every request says (`temperature`, `max_tokens`, ...).
        seed: of the episode; each turn asks with one of its own, which servers may ignore.

    Attributes:
        usage: tokens that the server counted so far: `prompt_tokens`, `completion_tokens`.
    """

    def __init__(
        self, agent: ChatAgent, endpoint: Endpoint, asked: Mapping[str, Any], seed: int, limits: EpisodeLimits
    ) -> None:
        self._agent, self._endpoint, self._asked, self._seed, self._limits = agent, endpoint, asked, seed, limits
        self.usage = {"prompt_tokens": 0, "completion_tokens": 0}

    async def act(self, history: list[Step], turn: Turn) -> str:
        """See `Player.act`."""
        seed = derive_seed(self._seed, "turn", len(history) - 1) % 2**31
        try:
            messages = [message.as_dict() for message in self._agent.messages(history)]
        except Exception as error:
            raise Fault("agent", "crash", describe(error)) from error
        with guarded("engine", self._limits.generate_seconds, "generate"):
            reply = await self._endpoint.ask({**self._asked, "messages": messages, "seed": seed})
        self.usage["prompt_tokens"] += reply.prompt_tokens
        self.usage["completion_tokens"] += reply.completion_tokens
        turn.completion = str(reply.message.get("content") or "")
        try:
            return str(self._agent.action(turn.completion, history[-1]))
        except Exception as error:
            raise Fault("agent", "crash", describe(error)) from error

    async def close(self, aborted: bool) -> None:
        """See `Player.close`."""
        return
