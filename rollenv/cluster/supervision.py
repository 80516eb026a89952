"""Supervision: who does not answer is dead, and who is dead gets a successor, after a while that grows.

`Backoff` decides when (a state machine; time is passed in), `Supervisor` does it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from rollenv.cluster.engine import RemoteEngine
from rollenv.inference.base import EngineDead, EngineError
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
        heartbeat: seconds between two pings of an engine.
        patience: seconds that it may take to answer one; longer than anything that keeps its loop busy.
        backoff: makes the backoff of each name.
    """

    def __init__(
        self,
        start: Callable[[str], Awaitable[RemoteEngine]],
        heartbeat: float = 10.0,
        patience: float = 60.0,
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        self._start, self._heartbeat, self._patience, self._backoff = start, heartbeat, patience, backoff
        self._engines: dict[str, RemoteEngine] = {}
        self._backoffs: dict[str, Backoff] = {}
        self.restarts = 0

    async def begin(self, name: str) -> RemoteEngine:
        """Starts the first engine of that name."""
        engine = self._engines[name] = await self._start(name)
        return engine

    async def succeed(self, name: str, cause: str) -> RemoteEngine:
        """Starts the next engine of that name, when its time has come.

        Raises:
            EngineError: it has died too often lately.
        """
        self._engines.pop(name, None)
        backoff = self._backoffs.setdefault(name, self._backoff())
        wait = backoff.next(asyncio.get_running_loop().time())
        if wait is None:
            raise EngineError(f"it began {backoff.most} times within {backoff.within:g} s and died each time")
        log.warning("engine '%s' died (%s) and begins again in %g s", name, cause, wait)
        await asyncio.sleep(wait)
        self.restarts += 1
        return await self.begin(name)

    async def watch(self, proxy: LLMProxy) -> None:
        """Pings until it is cancelled; tells the proxy who does not answer."""
        while True:
            await asyncio.sleep(self._heartbeat)
            await asyncio.gather(*(self._ping(proxy, name, engine) for name, engine in list(self._engines.items())))

    async def _ping(self, proxy: LLMProxy, name: str, engine: RemoteEngine) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await engine.ping()
        except (EngineDead, TimeoutError) as error:
            if self._engines.get(name) is not engine:
                return  # the proxy knew already
            engine.handle.kill()
            cause = str(error) or f"it did not answer for {self._patience:g} s"
            proxy.declare_dead(name, cause)
