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
from rollenv.agents.harness import SPARE_SECONDS, Harness
from rollenv.agents.swe import SUBMIT
from rollenv.gateway.app import make_gateway
from rollenv.gateway.sessions import RecordedSession, Sessions
from rollenv.inference.base import Completion, Engine, EngineError, InvalidRequest, SamplingParams
from rollenv.inference.chat import ChatFormat
from rollenv.rollout.env_pool import Environments
from rollenv.rollout.episode import (
    EpisodeLimits,
    EpisodeRequest,
    Fault,
    Player,
    check_completion,
    describe,
    guarded,
)
from rollenv.rollout.layers import EngineLayer, Layers, MakeLayer
from rollenv.rollout.play import play_with_env, session_name
from rollenv.seeding import derive_seed
from rollenv.server.serve import listen
from rollenv.trajectory import Trajectory, Turn

_ANY_NUMBER = 1 << 30
"""Tokens: the run bounds completions, not who asks for them."""
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
            app = make_gateway(self._sessions, "policy", records=False, unsaid=_ANY_NUMBER)
            config = uvicorn.Config(
                app, log_level="warning", access_log=False, timeout_keep_alive=75, timeout_graceful_shutdown=1
            )
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
        engine = _Asked(layers.engine(self.engine), self.sampling, self.limits, request.seed)
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
        step = None if limits.step_seconds is None else max(limits.step_seconds, seconds)
        whole = limits.episode_seconds
        if whole is not None:  # the step in which it works, and the one in which it waits to be judged
            whole = max(whole, 2 * (step or seconds) + (limits.reset_seconds or 0.0))
        return replace(limits, step_seconds=step, episode_seconds=whole, max_turns=None, max_tokens=None)


class _Asked(EngineLayer):
    """Samples as the run does, whatever the program asks for, within the bounds of an episode; keeps what failed.

    Attributes:
        fault: the engine's, if it failed.
        bounded: whether something was asked beyond a bound.
        over: whether the episode is: what is dropped then is nobody's fault.
    """

    def __init__(self, inner: Engine, sampling: SamplingParams, limits: EpisodeLimits, seed: int) -> None:
        super().__init__(inner)
        self._sampling, self._limits, self._seed = sampling, limits, seed
        self._turns = 0
        self.fault: Fault | None = None
        self.bounded = self.over = False

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: str) -> Completion:
        asked = self._as_the_run_does(len(prompt_ids), sampling)
        try:
            async with asyncio.timeout(self._limits.generate_seconds):
                completion = await self.inner.generate(prompt_ids, asked, session=session)
            check_completion(completion)
            return completion
        except InvalidRequest:
            self.bounded = True
            raise
        except TimeoutError as error:
            fault = Fault("engine", "timeout", f"generate took longer than {self._limits.generate_seconds} s")
            raise self._failed(fault) from error
        except Exception as error:
            fault = error if isinstance(error, Fault) else Fault("engine", "crash", describe(error))
            raise self._failed(fault) from error

    def _as_the_run_does(self, length: int, sampling: SamplingParams) -> SamplingParams:
        limits, ours, turn = self._limits, self._sampling, self._turns
        room = sampling.max_tokens if limits.max_tokens is None else limits.max_tokens - length
        if room < 1 or (limits.max_turns is not None and turn >= limits.max_turns):
            self.bounded = True
            bound = f"{limits.max_tokens} tokens" if room < 1 else f"{limits.max_turns} turns"
            raise InvalidRequest(f"the episode's bound of {bound} is reached")
        self._turns += 1
        most = min(sampling.max_tokens, ours.max_tokens, room)
        return replace(ours, max_tokens=most, seed=derive_seed(self._seed, "turn", turn), stop=sampling.stop)

    def _failed(self, fault: Fault) -> EngineError:
        if not self.over:
            self.fault = self.fault or fault
        return EngineError(fault.message)


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
            await self.close(False)  # what it did not wait for is no turn of its
            if (fault := self._fault()) is not None:
                raise fault
        return turn.completion

    def _fault(self) -> Fault | None:
        """What makes an end of the program no end of an episode."""
        if self._engine.fault is not None or self._session.trajectory.turns or self._engine.bounded:
            return self._engine.fault
        last = self._said.strip().splitlines()[-1:] or ["it said nothing"]
        return Fault("agent", "crash", f"the program ended without an answer of the model: {last[0]}")

    async def close(self, aborted: bool) -> None:
        """The program is not answered any more."""
        self._engine.over = True
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
