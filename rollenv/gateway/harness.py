"""Episodes whose agent is a program in the sandbox: it asks the model through a door of the sandbox, and is recorded.

Invariant: an episode's turns are those of the program with the model, as the engine read and sampled them; reward and
end are the environment's. A fault of the engine is the episode's fault, whatever the program made of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import uvicorn

from rollenv.agents.base import Step
from rollenv.agents.harness import Harness
from rollenv.agents.swe import SUBMIT
from rollenv.gateway.app import make_gateway
from rollenv.gateway.sessions import RecordedSession, Sessions
from rollenv.inference.base import Completion, Engine, EngineError, InvalidRequest, SamplingParams
from rollenv.inference.chat import ChatFormat
from rollenv.rollout.env_pool import Environments
from rollenv.rollout.episode import EpisodeLimits, EpisodeRequest, Fault, Player, describe, guarded
from rollenv.rollout.layers import EngineLayer, Layers, MakeLayer
from rollenv.rollout.play import play_with_env, session_name
from rollenv.server.serve import listen
from rollenv.trajectory import Trajectory, Turn

SPARE_SECONDS = 60.0
"""What a step has beyond the program's own time: to lay files out, to end it, to be judged."""
_KEPT = 4000
"""Characters of a program's last words that a trajectory keeps."""


class Door:
    """Where programs in sandboxes of this machine find the model. Its port is known before there is a model."""

    def __init__(self) -> None:
        self._listening = listen("127.0.0.1", 0)
        self.port: int = self._listening.getsockname()[1]
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._sessions: Sessions | None = None

    def sessions(self, engine: Engine, chat: ChatFormat) -> Sessions:
        """Whom it lets in: the sessions that are begun there. It opens with the first call, on the running loop."""
        if self._sessions is None:
            self._sessions = Sessions(engine, chat, invited_only=True)
            app = make_gateway(self._sessions, "policy", records=False)
            config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
            self._server = _Server(config)
            self._serving = asyncio.ensure_future(self._server.serve([self._listening]))
        return self._sessions

    async def close(self) -> None:
        """Nobody is answered any more."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            with contextlib.suppress(Exception):
                await self._serving
        self._listening.close()


class _Server(uvicorn.Server):
    """A guest in its process: signals are for others."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True, slots=True)
class HarnessPlay:
    """Plays requests by a program in the sandbox. See `rollenv.rollout.play.ModelPlay` for what else it is given."""

    pool: Environments
    env_name: str
    harness: Harness
    door: Door
    engine: Engine
    chat: ChatFormat
    sampling: SamplingParams
    limits: EpisodeLimits
    label: str = "train"
    layers: tuple[MakeLayer, ...] = ()

    async def __call__(self, request: EpisodeRequest) -> Trajectory:
        layers = Layers(self.layers, request)
        engine = _Asked(layers.engine(self.engine), self.sampling, self.limits)
        sessions = self.door.sessions(self.engine, self.chat)
        key = secrets.token_hex(16)
        session = sessions.begin(key, session_name(self.label, request), engine, request.seed)
        address = f"http://localhost:{self.door.port}/sessions/{key}/v1"

        def player() -> Player:
            return _HarnessPlayer(self.harness, session, engine, address, key)

        try:
            return await play_with_env(self.pool, player, request, self._around(), self.env_name, layers)
        finally:
            sessions.dismiss(key)

    def _around(self) -> EpisodeLimits:
        """The limits of what is around the program: it has its own time; turns and tokens are those with the model, and
        `_Asked` counts them."""
        limits, seconds = self.limits, self.harness.seconds + SPARE_SECONDS
        whole = limits.episode_seconds
        if whole is not None:
            whole = max(whole, seconds + SPARE_SECONDS + (limits.reset_seconds or 0.0))
        step = limits.step_seconds and max(limits.step_seconds, seconds)
        return replace(limits, step_seconds=step, episode_seconds=whole, max_turns=None, max_tokens=None)


class _Asked(EngineLayer):
    """Samples as the run does, whatever the program asks for, within the bounds of an episode; keeps what failed."""

    def __init__(self, inner: Engine, sampling: SamplingParams, limits: EpisodeLimits) -> None:
        super().__init__(inner)
        self._sampling, self._limits = sampling, limits
        self._turns = 0
        self.fault: Fault | None = None

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: str) -> Completion:
        limits, ours = self._limits, self._sampling
        room = sampling.max_tokens if limits.max_tokens is None else limits.max_tokens - len(prompt_ids)
        if room < 1:
            raise InvalidRequest(f"the episode's bound of {limits.max_tokens} tokens is reached")
        if limits.max_turns is not None and self._turns >= limits.max_turns:
            raise InvalidRequest(f"the episode's bound of {limits.max_turns} turns is reached")
        self._turns += 1
        most = min(sampling.max_tokens, ours.max_tokens, room)
        asked = replace(ours, max_tokens=most, seed=sampling.seed, stop=sampling.stop)
        try:
            async with asyncio.timeout(limits.generate_seconds):
                return await self.inner.generate(prompt_ids, asked, session=session)
        except InvalidRequest:
            raise
        except TimeoutError as error:
            self.fault = Fault("engine", "timeout", f"generate took longer than {limits.generate_seconds} s")
            raise EngineError(self.fault.message) from error
        except Exception as error:
            self.fault = error if isinstance(error, Fault) else Fault("engine", "crash", describe(error))
            raise EngineError(self.fault.message) from error


class _HarnessPlayer:
    """Begins the program, waits for it, and submits."""

    def __init__(self, harness: Harness, session: RecordedSession, engine: _Asked, address: str, key: str) -> None:
        self._harness, self._session, self._engine = harness, session, engine
        self._address, self._key = address, key
        self._actions: Iterator[str] | None = None
        self._said = ""

    async def act(self, history: list[Step], turn: Turn) -> str:
        """Our next action. Before the last one the program has ended.

        Raises:
            Fault: the engine failed it, or it never asked the model.
        """
        if self._actions is None:
            self._actions = self._harness.actions(history[0].observation, self._address, self._key)
        turn.completion = next(self._actions)
        if turn.completion == SUBMIT:
            self._said = history[-1].observation[-_KEPT:]
            if self._engine.fault is not None:
                raise self._engine.fault
            if not self._session.trajectory.turns:
                last = self._said.strip().splitlines()[-1:] or ["it said nothing"]
                raise Fault("agent", "crash", f"the program ended without an answer of the model: {last[0]}")
        return turn.completion

    async def close(self, aborted: bool) -> None:
        """The program is not answered any more."""
        with guarded("engine", None, "leaving the engine"):
            await self._session.leave()

    def rewrite(self, trajectory: Trajectory) -> None:
        """Puts the program's turns with the model in the place of ours with the environment."""
        reward, seconds = trajectory.reward, sum(turn.seconds.get("env", 0.0) for turn in trajectory.turns)
        turns = trajectory.turns = list(self._session.trajectory.turns)
        trajectory.info["harness"] = self._said
        if turns:
            turns[-1].reward = reward
            # What the world took that the model did not: nobody knows in which turn.
            spent = sum(turn.seconds["generate"] for turn in turns)
            turns[-1].seconds["env"] = max(0.0, seconds - spent)
        if trajectory.failure is not None:
            trajectory.failure = replace(trajectory.failure, turn=len(turns) - 1 if turns else None)
