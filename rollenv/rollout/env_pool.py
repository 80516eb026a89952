"""A pool of environments of one kind: reused after a clean episode, replaced after a fault, never more than allowed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from rollenv.core import Executor, TextEnv
from rollenv.rollout.episode import EpisodeLimits
from rollenv.tasks import TaskSet

log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""Deadline of closing an environment (and of closing all of them, at the end)."""


class Environments(Protocol):
    """Where episodes get their environments from."""

    @property
    def tasks(self) -> TaskSet:
        """What they can be reset to."""
        ...

    def limits(self, limits: EpisodeLimits) -> EpisodeLimits:
        """The limits that an episode has to watch itself."""
        ...

    async def acquire(self) -> TextEnv:
        """An environment for one episode; waits while as many play as may. Every one must be released."""
        ...

    def release(self, env: TextEnv, healthy: bool) -> None:
        """Takes one back; an unhealthy one is never used again."""
        ...

    def close(self) -> None:
        """Closes all."""
        ...


class Gate:
    """Lets `limit` in at the same time, in the order they came; None: all."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def bounded(self) -> bool:
        """Whether anyone may have to wait."""
        return self._limit is not None

    async def enter(self) -> None:
        """Waits for a place."""
        if self._limit is None or self._inside < self._limit:
            self._inside += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it got a place in the moment it was cancelled
                self.leave()
            raise

    def leave(self) -> None:
        """Gives a place back, to who has waited longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._inside -= 1


class EnvPool:
    """Environments of this process, made by `make`, handed out one episode at a time.

    Args:
        executor: how they are called; None: as their class says.
        max_concurrency: so many play at the same time; None: no bound.
        first: one that is there already.
    """

    def __init__(
        self,
        make: Callable[[], TextEnv],
        executor: Executor | None = None,
        max_concurrency: int | None = None,
        first: TextEnv | None = None,
    ) -> None:
        self._make, self._executor = make, executor
        self._gate = Gate(max_concurrency)
        self._closing: set[threading.Thread] = set()
        self._tasks: TaskSet | None = None  # known before anybody plays: to ask later would take one more environment
        self._idle: list[TextEnv] = [] if first is None else [self._placed(first)]

    @property
    def tasks(self) -> TaskSet:
        """What they can be reset to."""
        if self._tasks is None:
            if not self._idle:
                self._idle.append(self._new())
            self._tasks = self._idle[-1].tasks
        return self._tasks

    def limits(self, limits: EpisodeLimits) -> EpisodeLimits:
        """All of them."""
        return limits

    async def acquire(self) -> TextEnv:
        """An idle environment, or a new one."""
        await self._gate.enter()
        try:
            return self._idle.pop() if self._idle else self._new()
        except BaseException:
            self._gate.leave()
            raise

    def release(self, env: TextEnv, healthy: bool) -> None:
        """Takes one back. An unhealthy one is never used again: it is closed aside, as that may hang, and its place is
        free when it has closed, or after `CLOSE_SECONDS`."""
        if healthy:
            self._idle.append(env)
            self._gate.leave()
            return
        self._closing = {thread for thread in self._closing if thread.is_alive()}
        if not self._gate.bounded:
            self._closing.add(close_aside([env]))
            return
        place = _Place(asyncio.get_running_loop(), self._gate)
        self._closing.add(close_aside([env], place.leave))

    def close(self) -> None:
        """Closes the idle ones and waits for those that are closing; what hangs is given up after `CLOSE_SECONDS`."""
        idle, self._idle = self._idle, []
        for env in idle:
            if env.executor == "inline":
                _close_quietly(env)
        self._closing.add(close_aside([env for env in idle if env.executor != "inline"]))
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._closing:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._closing):
            log.warning("an environment did not close in %g s and was given up", CLOSE_SECONDS)

    def _new(self) -> TextEnv:
        return self._placed(self._make())

    def _placed(self, env: TextEnv) -> TextEnv:
        if self._executor is not None:
            env.executor = self._executor
        return env


class _Place:
    """A place behind a gate that is left once: when told from any thread, or when time is up."""

    def __init__(self, loop: asyncio.AbstractEventLoop, gate: Gate) -> None:
        self._loop, self._gate, self._left = loop, gate, False
        self._timer = loop.call_later(CLOSE_SECONDS, self._leave)

    def leave(self) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits at the gate
            self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        self._timer.cancel()
        if not self._left:
            self._left = True
            self._gate.leave()


def close_aside(envs: list[TextEnv], then: Callable[[], None] = lambda: None) -> threading.Thread:
    """Closes environments on a thread that holds nobody up, and calls `then` there."""

    def close_all() -> None:
        for env in envs:
            _close_quietly(env)
        then()

    thread = threading.Thread(target=close_all, name="env-discard", daemon=True)
    thread.start()
    return thread


def _close_quietly(env: TextEnv) -> None:
    try:
        env.close()
    except Exception:
        # It is being thrown away: what it says on closing changes nothing for anyone.
        return
