"""One environment, hosted: it is made once per session, and every request is carried out within its deadline."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rollenv.core import TextEnv
from rollenv.registration import EnvSpec, make
from rollenv.rollout.env_workers import RemoteEnv, WorkerPool
from rollenv.rollout.episode import Fault
from rollenv.server import wire
from rollenv.server.sessions import Session, SessionError, SessionTable
from rollenv.tasks import TaskSet

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server allows.

    Attributes:
        capacity: sessions of one environment at a time.
        lease_seconds: a session that nobody is connected to lives on for so long.
        reset_seconds, step_seconds: deadlines of one call; a session that misses one is over.
        message_bytes: the longest message, or request body.
        ping_seconds: between two pings of a connection; one that answers none for as long is half-open, and dropped.
    """

    capacity: int = 1024
    lease_seconds: float = 60.0
    reset_seconds: float = 120.0
    step_seconds: float = 60.0
    message_bytes: int = 1 << 20
    ping_seconds: float = 20.0


_NO_TASKS = TaskSet("none", {}, str)


@dataclass(slots=True, eq=False)
class Seat:
    """What a session holds: an environment, whether its calls are over without waiting, and who is at it."""

    env: TextEnv
    immediate: bool
    busy: asyncio.Lock
    task: str | None = None
    steps: int = 0
    over: bool = False
    last: wire.Reply | None = None


class EnvHost:
    """Hosts an environment for many clients.

    Args:
        spec: which.
        arguments: what every one of them is made with.
        limits: what is allowed.
        clock: seconds; for leases.
        workers: processes that the environments live in; 0: this one. One that crashes, or misses a deadline, takes its
            process with it, and the sessions in there.

    Raises:
        RollenvError: the environment cannot be made, or not in another process.
    """

    def __init__(
        self,
        spec: EnvSpec,
        arguments: Mapping[str, Any],
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        workers: int = 0,
    ) -> None:
        self.spec, self.limits, self._arguments, self._clock = spec, limits, dict(arguments), clock
        self.sessions = SessionTable(limits.capacity, limits.lease_seconds)
        self.requests = 0
        self.failures = 0
        self.example = make(spec, **self._arguments)  # loads what all share, and answers for all
        self.workers: WorkerPool | None = None
        if workers:
            seconds = (limits.reset_seconds, limits.step_seconds)
            unbounded = replace(spec, max_concurrency=None)  # who may play is for the sessions to say
            self.workers = WorkerPool(
                unbounded, self._arguments, _tasks_of(self.example) or _NO_TASKS, workers, *seconds
            )

    def tasks(self) -> TaskSet:
        """The environment's tasks. Raises SessionError when it has none."""
        if (found := _tasks_of(self.example)) is None:
            raise SessionError("SESSION_ERROR", f"{self.spec.id} has no task set")
        return found

    # -- sessions ----------------------------------------------------------------------------------------------------

    async def open(self, name: str | None = None) -> Session:
        """A new session.

        Raises:
            ServerFull: there is no place.
        """
        self.sessions.ensure_room()
        env = make(self.spec, **self._arguments) if self.workers is None else await self.workers.acquire()
        seat = Seat(env, self.workers is None and _is_immediate(env), asyncio.Lock())
        return self.sessions.open(name or secrets.token_urlsafe(16), seat, self._clock())

    def join(self, name: str) -> Session:
        """The session of that name, which shows a sign of life.

        Raises:
            SessionError: there is none.
        """
        session = self.sessions.get(name)
        self.sessions.touch(session, self._clock())
        return session

    def connected(self, session: Session) -> None:
        """A connection holds the session."""
        self.sessions.connect(session)

    def disconnected(self, session: Session) -> None:
        """It does no longer: the lease runs."""
        self.sessions.disconnect(session, self._clock())

    def end(self, session: Session) -> None:
        """Closes a session, once."""
        if self.sessions.close(session):
            env = session.held.env
            with contextlib.suppress(Exception):  # an environment that cannot even close is gone all the same
                env.close() if self.workers is None else self.workers.release(env, healthy=False)

    def reap(self) -> int:
        """Ends the sessions whose lease has run out; how many."""
        gone = self.sessions.expired(self._clock())
        for session in gone:
            self.end(session)
        return len(gone)

    def close(self) -> None:
        """Ends all."""
        for session in self.sessions.all():
            self.end(session)
        if self.workers is not None:
            self.workers.close()
        self.example.close()

    # -- requests ----------------------------------------------------------------------------------------------------

    async def ask(self, session: Session, message: wire.Message) -> wire.Reply:
        """Carries a request out and answers it; what goes wrong is an answer, too. Requests of a session wait for
        each other; one with a number that was carried out before is answered as before."""
        self.requests += 1
        seat: Seat = session.held
        async with seat.busy:
            try:
                self.sessions.get(session.id)  # it may have ended meanwhile
                if (again := session.replay(message.step_id)) is not None:
                    return dict(again)
                reply = await self._carry_out(session, message)
            except (Exception, SystemExit) as error:  # an environment may not end the server
                self.failures += 1
                reply = wire.failure(error)
            session.answered(message.step_id, reply)
            self.sessions.touch(session, self._clock())
            return reply

    def ask_now(self, session: Session, message: wire.Message) -> wire.Reply | None:
        """`ask`, without an event loop's help; None where that has to wait, or finds the session ended."""
        seat: Seat = session.held
        if not seat.immediate or seat.busy.locked() or self.sessions.find(session.id) is not session:
            return None
        return _result_of(self.ask(session, message))

    async def _carry_out(self, session: Session, message: wire.Message) -> wire.Reply:
        seat: Seat = session.held
        if message.type == "step":
            return await self._step(session, wire.action_of(message.data))
        if message.type == "reset":
            return await self._reset(session, *wire.reset_arguments(message.data))
        if message.type == "snapshot":
            taken = await self._within(session, self.limits.step_seconds, "snapshot", seat.env.asnapshot())
            return {"type": "snapshot", "data": {"snapshot": wire.encode_bytes(taken)}}
        if message.type == "restore":
            return await self._restore(session, message.data)
        if message.type == "reseed":
            if (seed := wire.seed_of(message.data)) is None:
                raise SessionError("VALIDATION_ERROR", "a reseed needs a 'seed'")
            await self._within(session, self.limits.step_seconds, "reseed", seat.env.areseed(seed))
        return self.state(session)

    async def _restore(self, session: Session, data: Mapping[str, Any]) -> wire.Reply:
        seat: Seat = session.held
        work = seat.env.arestore(wire.decode_bytes(data.get("snapshot")), seed=wire.seed_of(data))
        return self._begun(seat, *await self._within(session, self.limits.reset_seconds, "restore", work))

    async def _reset(self, session: Session, seed: int | None, options: dict[str, Any] | None) -> wire.Reply:
        seat: Seat = session.held
        deadline = self.limits.reset_seconds
        text, info = await self._within(session, deadline, "reset", seat.env.areset(seed=seed, options=options))
        return self._begun(seat, text, info)

    def _begun(self, seat: Seat, text: str, info: dict[str, Any]) -> wire.Reply:
        seat.task, seat.steps, seat.over = info.get("task"), 0, False
        seat.last = wire.observation(text, info, None, False, False)
        return seat.last

    async def _step(self, session: Session, action: str) -> wire.Reply:
        seat: Seat = session.held
        played = await self._within(session, self.limits.step_seconds, "step", seat.env.astep(action))
        text, reward, terminated, truncated, info = played
        seat.steps += 1
        session.steps += 1
        seat.over = terminated or truncated
        seat.last = wire.observation(text, info, float(reward), terminated, truncated)
        return seat.last

    async def _within(self, session: Session, seconds: float, what: str, call: Awaitable[T]) -> T:
        """Awaits a call of the environment. One that takes too long is left alone with its session."""
        try:
            # A worker process watches the time itself: waiting for other environments in it does not count. And a call
            # that never waits cannot be broken off.
            if self.workers is not None or session.held.immediate:
                return await call
            async with asyncio.timeout(seconds):
                return await call
        except TimeoutError as error:
            self.end(session)
            raise _late(seconds, what) from error
        except Fault as fault:
            if fault.__cause__ is not None:
                raise fault.__cause__ from None
            env = session.held.env
            if isinstance(env, RemoteEnv) and not env.worker.ended:
                raise SessionError("EXECUTION_ERROR", f"the environment failed: {fault.message}") from fault
            self.end(session)
            if fault.kind == "timeout":
                raise _late(seconds, what) from fault
            raise SessionError("EXECUTION_ERROR", f"{fault.message}: the session is over") from fault

    def state(self, session: Session) -> wire.Reply:
        """Where a session stands."""
        seat: Seat = session.held
        data = {
            "session_id": session.id,
            "episode_id": seat.task,
            "env": self.spec.id,
            "task": seat.task,
            "step_count": seat.steps,
            "last_step_id": session.last_step,
            "done": seat.over,
        }
        return {"type": "state", "data": data}


def _tasks_of(env: TextEnv) -> TaskSet | None:
    return getattr(env, "tasks", None)


def _is_immediate(env: TextEnv) -> bool:
    """Whether its asynchronous calls are plain calls in this thread."""
    names = ("areset", "astep", "asnapshot", "arestore", "areseed", "_call")
    return env.executor == "inline" and all(getattr(type(env), name) is getattr(TextEnv, name) for name in names)


def _result_of(call: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that never waits."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise RuntimeError("an environment that never waits waits for something")


def _late(seconds: float, what: str) -> SessionError:
    return SessionError("DEADLINE", f"the environment took more than {seconds:g} s for a {what}: the session is over")
