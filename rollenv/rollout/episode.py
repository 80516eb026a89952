"""One episode: a coroutine that plays an environment and leaves exactly one Trajectory, whatever happens.

Invariant: `play_episode` always returns a Trajectory with a StopReason. A fault of the environment or the engine
becomes a labelled Failure, never a reward; a cancellation reaches the engine before it returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from rollenv.agents.base import ChatAgent, ScriptedAgent, Step
from rollenv.inference.base import Completion, Engine, SamplingParams, fork, made_before
from rollenv.inference.chat import ChatFormat, Conversation
from rollenv.rollout.branch_points import BranchPoint, BranchPoints
from rollenv.rollout.deadlines import Deadline, Watch, own_watch, watching
from rollenv.seeding import derive_seed
from rollenv.trajectory import Failure, FaultKind, FaultPlace, StopReason, Trajectory, Turn, plain


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """Which episode to play. Everything random in it follows from `seed`, also when it is tried again."""

    task: str
    seed: int
    group: int = 0
    sample: int = 0
    attempt: int = 0
    life: int = 0
    """How often its group was begun and cancelled before."""
    env: str = ""
    """Which environment of a mixture."""
    collateral: int = 0
    """How often it was lost through no fault of its own, beside the attempts."""
    start: BranchPoint | None = None
    """A state of another episode that it is played from; None: it begins with a reset."""
    branch: int | None = None
    """Of an episode that is played only to value the state it starts from: its number among those; it is no sample of
    its group, and `sample` is the one that it values."""
    points: BranchPoints | None = field(default=None, compare=False)
    """Where the states are noted that others are to start from; None where nobody is."""

    @property
    def place(self) -> str:
        """Which of its group's episodes it is, in words for names."""
        if self.branch is None or self.start is None:
            return str(self.sample)
        return f"{self.sample}.{self.start.turn}.{self.branch}"


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Bounds of one episode; None means no bound. Seconds are wall-clock."""

    max_turns: int | None = None
    max_tokens: int | None = None
    """Bound on the context: prompt and completion tokens together."""
    reset_seconds: float | None = 60.0
    step_seconds: float | None = 60.0
    generate_seconds: float | None = 300.0
    episode_seconds: float | None = 3600.0


class Fault(Exception):
    """A fault on its way to becoming a `Failure`."""

    def __init__(self, where: FaultPlace, kind: FaultKind, message: str, collateral: bool = False) -> None:
        super().__init__(message)
        self.where, self.kind, self.message, self.collateral = where, kind, message, collateral


class OutOfTokens(Exception):
    """The next prompt would not leave room for an answer."""


class EpisodeEnv(Protocol):
    """What an episode needs of its environment."""

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """See `rollenv.TextEnv.areset`."""
        ...

    async def astep(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """See `rollenv.TextEnv.astep`."""
        ...


@runtime_checkable
class SnapshotEnv(Protocol):
    """What branching needs of an environment on top."""

    async def asnapshot(self) -> bytes:
        """See `rollenv.TextEnv.asnapshot`."""
        ...

    async def arestore(self, snapshot: bytes, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """See `rollenv.TextEnv.arestore`."""
        ...


class Player(Protocol):
    """Acts in one episode."""

    async def act(self, history: list[Step], turn: Turn) -> str:
        """The action for `history[-1]`; fills the token fields of `turn` when there are tokens.

        Raises:
            Fault: the agent or the engine failed.
            OutOfTokens: the context is full.
        """
        ...

    async def close(self, aborted: bool) -> None:
        """The episode is over: frees what it held in the engine."""
        ...


@runtime_checkable
class Recorder(Protocol):
    """A player that has lived the episode otherwise than turn by turn with the environment."""

    def rewrite(self, trajectory: Trajectory) -> None:
        """Called once, when the episode is over and the player is closed: says what its turns were."""
        ...


class ScriptedPlayer:
    """Lets a program act, one that answers at once or one that has to be awaited. What it has used (`usage`, of an
    agent that asks a server) is noted in the trajectory's `info`."""

    def __init__(self, agent: ScriptedAgent, seed: int) -> None:
        self._agent = agent
        agent.reset(seed)

    async def act(self, history: list[Step], turn: Turn) -> str:
        try:
            said: Any = self._agent.act(history[-1].observation, history[-1].info)
            action: str = await said if inspect.isawaitable(said) else said
        except Exception as error:
            raise Fault("agent", "crash", describe(error)) from error
        turn.completion = action
        return action

    @property
    def usage(self) -> Mapping[str, int]:
        """See the class."""
        return getattr(self._agent, "usage", {})

    async def close(self, aborted: bool) -> None:
        return None


class Demonstrator:
    """Lets a program act while its episode is written down as a language model would have lived it.

    Each turn gets the ids that the model would read and, as its completion, those of the action as the model would
    write it (log-probability 0, version -1: nothing was sampled). What the expert says of its reasons, in an attribute
    `thought`, is in the step's data for the agent to write, if it writes thoughts.

    Args:
        expert: the program.
        agent: renders prompts and actions.
        chat: makes ids; None leaves them out (the texts alone are wanted, to train a tokenizer on).
        on_text: gets every message once, as it is rendered.
    """

    def __init__(
        self,
        expert: ScriptedAgent,
        seed: int,
        agent: ChatAgent,
        chat: ChatFormat | None,
        on_text: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._expert, self._agent, self._chat, self._on_text = expert, agent, chat, on_text
        self._conversation = Conversation(chat) if chat is not None else None
        expert.reset(seed)

    async def act(self, history: list[Step], turn: Turn) -> str:
        step = history[-1]
        try:
            action = self._expert.act(step.observation, step.info)
            messages = self._agent.messages(history)
            step.data["thought"] = getattr(self._expert, "thought", "")
            turn.completion = self._agent.text(action, step)
            meant = str(self._agent.action(turn.completion, step))
        except Exception as error:
            raise Fault("agent", "crash", describe(error)) from error
        self._on_text(messages[-1].content)
        self._on_text(turn.completion)
        if self._conversation is not None and self._chat is not None:
            _, turn.prompt_ids, turn.fork = self._conversation.prompt(messages)
            turn.completion_ids = [*self._chat.plain(turn.completion), self._chat.end_of_turn_id]
            turn.logprobs = [0.0] * len(turn.completion_ids)
            turn.policy_versions = [-1] * len(turn.completion_ids)
            self._conversation.answered(len(history) - 1, turn.completion_ids, turn.completion)
        return meant

    async def close(self, aborted: bool) -> None:
        return None


class ModelPlayer:
    """Lets a language model act through an engine; its tokens are recorded as they were sampled."""

    def __init__(
        self,
        agent: ChatAgent,
        engine: Engine,
        chat: ChatFormat,
        sampling: SamplingParams,
        request: EpisodeRequest,
        limits: EpisodeLimits,
        session: str,
    ) -> None:
        self._agent, self._engine, self._chat, self._sampling = agent, engine, chat, sampling
        self._request, self._limits, self._session = request, limits, session
        start = request.start
        self._conversation = Conversation(chat) if start is None else start.conversation.copy()
        self._forked = start is None

    async def act(self, history: list[Step], turn: Turn) -> str:
        index = len(history) - 1
        try:
            prompt, turn.prompt_ids, turn.fork = self._conversation.prompt(self._agent.messages(history))
        except Exception as error:
            raise Fault("agent", "crash", describe(error)) from error
        room = math.inf if self._limits.max_tokens is None else self._limits.max_tokens - len(prompt)
        if room < 1:
            raise OutOfTokens
        sampling = replace(
            self._sampling,
            max_tokens=int(min(self._sampling.max_tokens, room)),
            seed=derive_seed(self._request.seed, "turn", index),
        )
        await self._generate(prompt, sampling, turn)
        self._conversation.answered(index, turn.completion_ids, turn.completion)
        try:
            return str(self._agent.action(turn.completion, history[-1]))
        except Exception as error:
            raise Fault("agent", "crash", describe(error)) from error

    async def _generate(self, prompt: list[int], sampling: SamplingParams, turn: Turn) -> None:
        if not self._forked and self._request.start is not None:
            self._forked = True
            with guarded("engine", self._limits.generate_seconds, "fork"):
                await fork(self._engine, self._request.start.session, self._session)
        try:
            with guarded("engine", self._limits.generate_seconds, "generate"):
                completion = await self._engine.generate(prompt, sampling, session=self._session)
        except BaseException as error:
            if (part := made_before(error)) is not None:
                self._record(part, turn)
            raise
        if completion.finish_reason == "aborted":
            self._record(completion, turn)
        check_completion(completion)
        self._record(completion, turn)

    def _record(self, completion: Completion, turn: Turn) -> None:
        turn.completion_ids, turn.logprobs = completion.ids, completion.logprobs
        turn.policy_versions = completion.policy_versions
        turn.completion = self._chat.decode(completion.ids)

    def point(self, snapshot: bytes, history: list[Step], trajectory: Trajectory) -> BranchPoint:
        """The state that the episode has come to."""
        own = [self._request.sample] * len(trajectory.own_turns)
        shared, turns = [*trajectory.shared, *own], list(trajectory.turns)
        sample, session = self._request.sample, self._session
        return BranchPoint(sample, snapshot, list(history), turns, shared, self._conversation.copy(), session)

    async def close(self, aborted: bool) -> None:
        if self._request.points is not None and not aborted:
            self._request.points.keep(self._leave_quietly)
            return
        with guarded("engine", self._limits.generate_seconds, "leaving the engine"):
            await self._leave(aborted)

    async def _leave_quietly(self) -> None:
        """Later, when an engine that fails harms nobody any more: who still needs it will see."""
        with contextlib.suppress(Fault), guarded("engine", self._limits.generate_seconds, "leaving the engine"):
            await self._leave(False)

    async def _leave(self, aborted: bool) -> None:
        if aborted:
            await self._engine.abort(self._session)
        await self._engine.release(self._session)


def check_completion(completion: Completion) -> None:
    """Raises a Fault for one that was aborted, or cannot be trained on."""
    if completion.finish_reason == "aborted":
        raise Fault("engine", "crash", "the engine aborted the completion")
    lengths = {len(completion.ids), len(completion.logprobs), len(completion.policy_versions)}
    if len(lengths) != 1 or not completion.ids or not all(math.isfinite(x) for x in completion.logprobs):
        raise Fault("engine", "bad_output", f"ids, log-probabilities and versions do not fit: lengths {lengths}")


async def play_episode(
    env: EpisodeEnv, player: Player, request: EpisodeRequest, limits: EpisodeLimits, env_name: str
) -> Trajectory:
    """Plays one episode to its end, its limits, its fault or its cancellation.

    A cancellation of the calling task ends the episode as `ABORTED` and is swallowed: the trajectory is the answer.
    """
    trajectory, scene = _begin(request, env_name), _Scene()
    try:
        with watching() as watch, watch.within(limits.episode_seconds):
            trajectory.stop = await _play(env, player, request, limits, trajectory, scene, watch)
    except asyncio.CancelledError:
        trajectory.stop = StopReason.ABORTED
    except TimeoutError:
        message = f"the episode took longer than {limits.episode_seconds} s"
        _fail(trajectory, Fault(scene.where, "timeout", message))
    except Fault as fault:
        _fail(trajectory, fault)
    except Exception as error:  # a value that broke even the checks made of it
        _fail(trajectory, Fault("env", "bad_output", describe(error)))
    if usage := getattr(player, "usage", None):
        trajectory.info["usage"] = dict(usage)
    try:
        await player.close(aborted=trajectory.stop in (StopReason.ABORTED, StopReason.FAILED))
    except Fault as fault:
        _fail(trajectory, fault)
    except Exception as error:
        _fail(trajectory, Fault("engine", "crash", describe(error)))
    if isinstance(player, Recorder):
        player.rewrite(trajectory)
    return trajectory


class _Scene:
    """Who is at it in an episode: whose fault it is when its time is over."""

    where: FaultPlace = "env"


def failed_to_begin(request: EpisodeRequest, env_name: str, fault: Fault) -> Trajectory:
    """The trajectory of an episode whose environment or agent could not be made."""
    trajectory = _begin(request, env_name)
    _fail(trajectory, fault)
    return trajectory


def never_begun(request: EpisodeRequest, env_name: str) -> Trajectory:
    """The trajectory of an episode that was cancelled before it had an environment."""
    return _begin(request, env_name)


def _begin(request: EpisodeRequest, env_name: str) -> Trajectory:
    start = request.start
    return Trajectory(
        env=env_name,
        task=request.task,
        seed=request.seed,
        group=request.group,
        sample=request.sample,
        attempt=request.attempt,
        turns=list(start.turns) if start is not None else [],
        shared=list(start.shared) if start is not None else [],
    )


async def _play(
    env: EpisodeEnv,
    player: Player,
    request: EpisodeRequest,
    limits: EpisodeLimits,
    trajectory: Trajectory,
    scene: _Scene,
    watch: Watch,
) -> StopReason:
    history = await _first(env, request, limits, watch)
    observation = history[-1].observation
    clock = watch.loop.time  # the loop's: a simulation has a clock of its own
    while True:
        if limits.max_turns is not None and len(trajectory.turns) >= limits.max_turns:
            return StopReason.MAX_TURNS
        if request.points is not None and isinstance(player, ModelPlayer):
            snapshot = await _snapshot(env, limits, watch)
            request.points.add(player.point(snapshot, history, trajectory))
        step, turn = history[-1], Turn(observation)
        began = clock()
        scene.where = "engine"
        try:
            turn.action = await player.act(history, turn)
        except OutOfTokens:
            return StopReason.MAX_TOKENS
        except BaseException:
            if turn.completion_ids:  # a turn that never ended, but its tokens were spent
                turn.seconds = {"generate": clock() - began}
                trajectory.turns.append(turn)
            raise
        scene.where = "env"
        acted = clock()
        trajectory.turns.append(turn)
        try:
            with guarded("env", limits.step_seconds, "step", watch):
                result = await env.astep(turn.action)
        finally:  # also of a step that came to nothing: its time was spent
            turn.seconds = {"generate": acted - began, "env": clock() - acted}
        observation, turn.reward, terminated, truncated, info = _checked_step(result)
        turn.valid_action = bool(info.get("valid_action", True))
        step.completion, step.action, step.valid_action = turn.completion, turn.action, turn.valid_action
        if terminated or truncated:
            trajectory.success = bool(info["success"]) if "success" in info else None
            trajectory.info = {key: plain(info[key]) for key in ("reward_parts",) if key in info}
            return StopReason.TERMINATED if terminated else StopReason.TRUNCATED
        history.append(Step(observation, info))


async def _first(env: EpisodeEnv, request: EpisodeRequest, limits: EpisodeLimits, watch: Watch) -> list[Step]:
    """What there is to see in the beginning: of the task, or at the point where a branch starts."""
    seed = request.seed % 2**31
    if request.start is None:
        with guarded("env", limits.reset_seconds, "reset", watch):
            begun = await env.areset(seed=seed, options={"task": request.task})
        return [Step(*_checked_begin(begun, "reset"))]
    if not isinstance(env, SnapshotEnv):
        raise Fault("env", "bad_output", "it has no snapshots")
    with guarded("env", limits.reset_seconds, "restore", watch):
        begun = await env.arestore(request.start.snapshot, seed=seed)
    _checked_begin(begun, "restore")
    # The agent goes on with what it was shown: a restored environment may say it in other words.
    return request.start.seen()


async def _snapshot(env: EpisodeEnv, limits: EpisodeLimits, watch: Watch) -> bytes:
    if not isinstance(env, SnapshotEnv):
        raise Fault("env", "bad_output", "it has no snapshots")
    with guarded("env", limits.step_seconds, "snapshot", watch):
        snapshot = await env.asnapshot()
    if not isinstance(snapshot, bytes):
        raise Fault("env", "bad_output", f"snapshot must return bytes, not {type(snapshot).__name__}")
    return snapshot


class guarded(Deadline):
    """A `with` block under a deadline, in which whatever goes wrong turns into a `Fault` at `where`.

    A block and no coroutine: there are two of them in every turn, and each task that is woken walks through all of its
    coroutines.

    Args:
        seconds: None: no bound.
        what: the call, in words for the message.
        watch: the current task's; None finds it.

    Raises:
        Fault: at the block's end: `timeout` when the time is over, `crash` for any other error, or a fault as it is.
    """

    __slots__ = ("_what", "_where")

    def __init__(self, where: FaultPlace, seconds: float | None, what: str, watch: Watch | None = None) -> None:
        Deadline.__init__(self, watch if watch is not None else own_watch(), seconds)
        self._where, self._what = where, what

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            Deadline.__exit__(self, kind, error, trace)
        except TimeoutError as timeout:
            error = timeout
        # A worker process knows better what went wrong, and a cancellation goes on its way; but an environment that
        # calls sys.exit() ends itself, not the run.
        if isinstance(error, Fault) or not isinstance(error, (Exception, SystemExit)):
            return
        if self.expired:
            message = f"{self._what} took longer than {self.seconds} s"
            raise Fault(self._where, "timeout", message) from error
        raise Fault(self._where, "crash", f"{self._what}: {describe(error)}") from error


def describe(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}".strip().rstrip(":")


def _fail(trajectory: Trajectory, fault: Fault) -> None:
    trajectory.stop = StopReason.FAILED
    turn = len(trajectory.turns) - 1 if trajectory.turns else None
    trajectory.failure = Failure(fault.where, fault.kind, fault.message, turn, fault.collateral)


def _checked_begin(result: Any, call: str) -> tuple[str, dict[str, Any]]:
    match result:
        case (str() as observation, dict() as info):
            return observation, info
    raise Fault("env", "bad_output", f"{call} must return (str, dict), not {result!r:.200}")


def _checked_step(result: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
    match result:
        case (str() as observation, (float() | int()) as reward, terminated, truncated, dict() as info):
            if math.isfinite(reward):
                return observation, float(reward), bool(terminated), bool(truncated), info
    raise Fault("env", "bad_output", f"step must return (str, finite float, bool, bool, dict), not {result!r:.200}")
