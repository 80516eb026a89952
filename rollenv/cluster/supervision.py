"""Supervision: who does not answer is dead, and who is dead gets a successor, after a while that grows. Who is about to
leave finishes what it is at, and gets one at once.

`Backoff` decides when (a state machine; time is passed in), `Supervisor` does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from rollenv.cluster.engine import RemoteEngine
from rollenv.inference.base import Engine, EngineError
from rollenv.inference.proxy import LLMProxy

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Backoff:
    """When what died may begin again: at once, then after `first`, 2 `first`, 4 `first`, ... seconds, at most
    `longest`; never again when it has begun `most` times within `within` seconds."""

    first: float = 1.0
    longest: float = 60.0
    most: int = 6
    within: float = 600.0
    _begun: deque[float] = field(default_factory=deque)

    def next(self, now: float) -> float | None:
        """Seconds to wait before it begins again, which is noted as if it did; None: no more."""
        while self._begun and now - self._begun[0] > self.within:
            self._begun.popleft()
        n = len(self._begun)
        if n >= self.most:
            return None
        wait = min(self.longest, self.first * math.ldexp(1.0, n - 1)) if n else 0.0
        self._begun.append(now + wait)
        return wait


class Supervisor:
    """Watches the engines of a proxy. `succeed` is the proxy's `successor`; `watch` pings while it runs.

    Args:
        start: starts an engine, by name.
        leaving: names of the engines that will soon be gone; these and others.
        wrap: what the proxy sees instead of an engine, by name.
        heartbeat: seconds between two pings of an engine.
        patience: seconds that it may take to answer one; longer than anything that keeps its loop busy.
        backoff: makes the backoff of each name.
    """

    def __init__(
        self,
        start: Callable[[str], Awaitable[RemoteEngine]],
        leaving: Callable[[], Awaitable[frozenset[str]]] | None = None,
        wrap: Callable[[str, Engine], Engine] = lambda name, engine: engine,
        heartbeat: float = 10.0,
        patience: float = 60.0,
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        self._leaving, self._wrap = leaving, wrap
        self._start, self._heartbeat, self._patience, self._backoff = start, heartbeat, patience, backoff
        self._engines: dict[str, RemoteEngine] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._told_to_leave: set[str] = set()
        self._moves: set[asyncio.Task[None]] = set()
        self.restarts = 0

    async def begin(self, name: str) -> Engine:
        """Starts the first engine of that name."""
        engine = self._engines[name] = await self._start(name)
        self._told_to_leave.discard(name)
        return self._wrap(name, engine)

    async def succeed(self, name: str, cause: str) -> Engine:
        """Starts the next engine of that name, when its time has come.

        Raises:
            EngineError: it has died too often lately.
        """
        self._engines.pop(name, None)
        backoff = self._backoffs.setdefault(name, self._backoff())
        while (wait := backoff.next(asyncio.get_running_loop().time())) is not None:
            log.warning("engine '%s' died (%s) and begins again in %g s", name, cause, wait)
            await asyncio.sleep(wait)
            self.restarts += 1
            try:
                return await self.begin(name)
            except Exception as error:  # where it was to be may be gone as well
                cause = f"it did not begin: {error}"
        raise EngineError(
            f"it began {backoff.most} times within {backoff.within:g} s and died each time, the last time of: {cause}"
        )

    async def watch(self, proxy: LLMProxy) -> None:
        """Pings until it is cancelled; tells the proxy who does not answer, and replaces who is about to leave."""
        try:
            while True:
                await asyncio.sleep(self._heartbeat)
                await asyncio.gather(*(self._ping(proxy, name, engine) for name, engine in list(self._engines.items())))
                if self._leaving is not None:
                    self._begin_to_move(proxy, await self._leaving())
        finally:
            for task in self._moves:
                task.cancel()

    async def _ping(self, proxy: LLMProxy, name: str, engine: RemoteEngine) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await engine.ping()
        except Exception as error:  # it is gone, too late, or not healthy
            if self._engines.get(name) is not engine:
                return  # the proxy knew already
            engine.handle.kill()
            cause = str(error) or f"it did not answer for {self._patience:g} s"
            with contextlib.suppress(ValueError):  # it has yet to join, and will fail to
                proxy.declare_dead(name, cause)

    def _begin_to_move(self, proxy: LLMProxy, leaving: frozenset[str]) -> None:
        for name in sorted((leaving & self._engines.keys()) - self._told_to_leave):
            log.warning("engine '%s' is on a machine that leaves: it finishes what it is at, and moves", name)
            self._told_to_leave.add(name)
            self._moves.add(task := asyncio.ensure_future(self._move(proxy, name)))
            task.add_done_callback(self._moved)

    def _moved(self, task: asyncio.Task[None]) -> None:
        self._moves.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("an engine that moved is not back: %s", error)

    async def _move(self, proxy: LLMProxy, name: str) -> None:
        """Lets an engine finish and brings in its successor, for which there may be no place for a while."""
        try:
            engine = await proxy.drain(name)
        except (ValueError, EngineError) as error:  # it is the only one, or has died: then its death brings a successor
            log.warning("engine '%s' stays until it is gone: %s", name, error)
            return
        self._engines.pop(name, None)
        await engine.close()
        try:
            successor = await self.begin(name)
        except Exception as error:
            successor = await self.succeed(name, f"it did not begin: {error}")
        await proxy.join(successor, name=name)
