"""A pool of environments of one kind: reused after a clean episode, replaced after a fault, never more than allowed."""

from __future__ import annotations

import asyncio
import logging
import threading
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
        self._idle: list[TextEnv] = [] if first is None else [self._placed(first)]

    @property
    def tasks(self) -> TaskSet:
        """What they can be reset to."""
        if not self._idle:
            self._idle.append(self._new())
        return self._idle[-1].tasks

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
        """Takes one back. An unhealthy one is never used again; closing it may hang, so nobody waits for that."""
        self._gate.leave()
        if healthy:
            self._idle.append(env)
        else:
            close_aside([env])

    def close(self) -> None:
        """Closes the idle ones; those on threads may hang, and are given up after `CLOSE_SECONDS`."""
        idle, self._idle = self._idle, []
        for env in idle:
            if env.executor == "inline":
                _close_quietly(env)
        closing = close_aside([env for env in idle if env.executor != "inline"])
        closing.join(CLOSE_SECONDS)
        if closing.is_alive():
            log.warning("an environment did not close in %g s and was given up", CLOSE_SECONDS)

    def _new(self) -> TextEnv:
        return self._placed(self._make())

    def _placed(self, env: TextEnv) -> TextEnv:
        if self._executor is not None:
            env.executor = self._executor
        return env


def close_aside(envs: list[TextEnv]) -> threading.Thread:
    """Closes environments on a thread that holds nobody up."""

    def close_all() -> None:
        for env in envs:
            _close_quietly(env)

    thread = threading.Thread(target=close_all, name="env-discard", daemon=True)
    thread.start()
    return thread


def _close_quietly(env: TextEnv) -> None:
    try:
        env.close()
    except Exception:
        # It is being thrown away: what it says on closing changes nothing for anyone.
        return
