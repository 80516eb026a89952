"""Sandboxes that are ready before anybody asks: made ahead, taken back to their beginning after use, bounded in number.

Invariant: at most `max_live` sandboxes exist, whoever has them; those who wait are served in the order in which they
came; a sandbox that is handed out is as it was made, since nothing but a reset puts one back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rollenv.errors import RollenvError
from rollenv.sandboxes.backends import create
from rollenv.sandboxes.errors import PoolBusy, SandboxError
from rollenv.sandboxes.protocol import Sandbox
from rollenv.sandboxes.spec import SandboxSpec

log = logging.getLogger(__name__)

_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Seconds:
    """What the latest of something took, in seconds; 0 before the first."""

    count: int
    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class PoolMetrics:
    """A pool at a moment."""

    live: int
    """Sandboxes there are: ready, handed out, being made or reset."""
    ready: int
    waiting: int
    made: int
    reused: int
    """How often a sandbox was handed out again."""
    discarded: int
    """Sandboxes given up because they were unhealthy or could not be reset."""
    wait: Seconds
    """From `acquire` to a sandbox in hand."""
    make: Seconds
    reset: Seconds


class Timings:
    """The latest durations of one kind."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_REMEMBERED)
        self._count = 0

    def add(self, seconds: float) -> None:
        """One more."""
        self._latest.append(seconds)
        self._count += 1

    def seconds(self) -> Seconds:
        """Median and 95th percentile (nearest rank) of the latest."""
        ranked = sorted(self._latest)
        if not ranked:
            return Seconds(0, 0.0, 0.0)
        return Seconds(self._count, *(ranked[max(0, -(-len(ranked) * q // 100) - 1)] for q in (50, 95)))


class Pool:
    """Sandboxes of one backend, for one event loop. Also an asynchronous context manager, which closes it.

    Args:
        backend: as `create` takes it.
        max_live: how many may exist at a time, of all specs together.
        warm: how many of each spec that was asked for are kept ready, as far as `max_live` allows.
        max_waiting: how many may wait for one; further ones are turned away. None: any number.

    Raises:
        RollenvError: numbers that make no sense.
    """

    def __init__(
        self, backend: str | None = None, *, max_live: int = 8, warm: int = 1, max_waiting: int | None = None
    ) -> None:
        if max_live < 1 or warm < 0 or (max_waiting is not None and max_waiting < 0):
            raise RollenvError("a pool of sandboxes needs max_live >= 1, warm >= 0 and max_waiting >= 0")
        self._backend, self._max_live, self._warm, self._max_waiting = backend, max_live, warm, max_waiting
        self._ready: dict[str, deque[Sandbox]] = {}
        self._queue: deque[object] = deque()
        self._changed = asyncio.Condition()
        self._out: set[Sandbox] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._warming: dict[str, int] = {}
        self._live = self._made = self._reused = self._discarded = 0
        self._waits, self._makes, self._resets = Timings(), Timings(), Timings()
        self._closed = False

    @property
    def metrics(self) -> PoolMetrics:
        """Figures of this moment."""
        return PoolMetrics(
            live=self._live,
            ready=sum(map(len, self._ready.values())),
            waiting=len(self._queue),
            made=self._made,
            reused=self._reused,
            discarded=self._discarded,
            wait=self._waits.seconds(),
            make=self._makes.seconds(),
            reset=self._resets.seconds(),
        )

    @contextlib.asynccontextmanager
    async def sandbox(self, spec: SandboxSpec | None = None) -> AsyncIterator[Sandbox]:
        """A sandbox for the length of a block. An exception other than a `SandboxError` says nothing against it."""
        sandbox, healthy = await self.acquire(spec), True
        try:
            yield sandbox
        except SandboxError:
            healthy = False
            raise
        finally:
            self.release(sandbox, healthy)

    async def acquire(self, spec: SandboxSpec | None = None) -> Sandbox:
        """A fresh sandbox; give it back with `release`. Waits while there are `max_live`.

        Raises:
            PoolBusy: `max_waiting` others wait already.
            SandboxError: it cannot be made.
        """
        spec, began = spec or SandboxSpec(), time.monotonic()
        if self._max_waiting is not None and len(self._queue) >= self._max_waiting and not self._can_have(spec):
            raise PoolBusy(f"{len(self._queue)} already wait for a sandbox: try again later, or raise 'max_live'")
        found, evicted = await self._turn(spec)
        if evicted is not None:
            await self._close(evicted)
        if found is None:
            found = await self._make(spec)
        else:
            self._reused += 1
        self._out.add(found)
        self._waits.add(time.monotonic() - began)
        self._top_up(spec)
        return found

    async def _turn(self, spec: SandboxSpec) -> tuple[Sandbox | None, Sandbox | None]:
        """Waits in line; then a ready sandbox, or a free place (None), perhaps that of another (to be closed)."""
        ticket = object()
        self._queue.append(ticket)
        try:
            async with self._changed:
                await self._changed.wait_for(
                    lambda: self._closed or (self._queue[0] is ticket and self._can_have(spec))
                )
                if self._closed:
                    raise SandboxError("the pool of sandboxes is closed")
                if self._ready.get(spec.key):
                    return self._ready[spec.key].popleft(), None
                evicted = None
                if self._live >= self._max_live:  # the place of one that nobody asks for now
                    longest = max(self._ready.values(), key=len)
                    evicted = longest.popleft()
                    self._live -= 1
                self._live += 1
                return None, evicted
        finally:
            self._queue.remove(ticket)
            await self._tell()

    def _can_have(self, spec: SandboxSpec) -> bool:
        return bool(self._ready.get(spec.key)) or self._live < self._max_live or any(self._ready.values())

    def release(self, sandbox: Sandbox, healthy: bool = True) -> None:
        """Takes a sandbox back; it is reset, or closed when it is not healthy, while the caller goes on.

        Raises:
            RollenvError: it is not one of this pool, or was given back before.
        """
        if sandbox not in self._out:
            raise RollenvError(f"sandbox {sandbox.id} was not acquired from this pool, or was released before")
        self._out.discard(sandbox)
        self._start(self._take_back(sandbox, healthy))

    async def _take_back(self, sandbox: Sandbox, healthy: bool) -> None:
        began = time.monotonic()
        try:
            if not healthy or self._closed:
                raise SandboxError("it is not wanted any more")
            await sandbox.restore()
        except Exception as error:
            log.info("sandbox %s is discarded: %s", sandbox.id, error)
            self._discarded += not self._closed
            await self._close(sandbox)
            self._live -= 1
        else:
            self._resets.add(time.monotonic() - began)
            self._ready.setdefault(sandbox.spec.key, deque()).append(sandbox)
        await self._tell()

    async def warm(self, spec: SandboxSpec, number: int | None = None) -> None:
        """Makes sandboxes until so many are ready, or there is no room for more.

        Args:
            spec: what they are to be.
            number: how many; None: as many as the pool keeps ready.
        """
        wanted = (self._warm if number is None else number) - len(self._ready.get(spec.key, ()))
        room = min(wanted, self._max_live - self._live)
        self._live += max(room, 0)
        await asyncio.gather(*(self._make_ready(spec) for _ in range(room)))

    def _top_up(self, spec: SandboxSpec) -> None:
        coming = len(self._ready.get(spec.key, ())) + self._warming.get(spec.key, 0)
        if coming < self._warm and self._live < self._max_live and not self._queue:
            self._live += 1
            self._warming[spec.key] = self._warming.get(spec.key, 0) + 1
            self._start(self._warm_one(spec))

    async def _warm_one(self, spec: SandboxSpec) -> None:
        try:
            await self._make_ready(spec)
        except RollenvError as error:  # whoever needs one will be told
            log.info("no sandbox is made ahead: %s", error)
        finally:
            self._warming[spec.key] -= 1

    async def _make_ready(self, spec: SandboxSpec) -> None:
        made = await self._make(spec)
        if self._closed:
            await self._close(made)
            return
        self._ready.setdefault(spec.key, deque()).append(made)
        await self._tell()

    async def _make(self, spec: SandboxSpec) -> Sandbox:
        """A new one, in a place that was taken for it before."""
        began = time.monotonic()
        try:
            made = await create(spec, backend=self._backend)
        except BaseException:
            self._live -= 1
            await self._tell()
            raise
        self._made += 1
        self._makes.add(time.monotonic() - began)
        return made

    async def _close(self, sandbox: Sandbox) -> None:
        try:
            await sandbox.close()
        except Exception:
            log.exception("sandbox %s did not close; it stays in the ledger", sandbox.id)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Closes all sandboxes, also those that were not given back. Whoever waits is told."""
        self._closed = True
        await self._tell()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        ready = [sandbox for line in self._ready.values() for sandbox in line]
        await asyncio.gather(*(self._close(sandbox) for sandbox in (*ready, *self._out)))
        self._live -= len(ready) + len(self._out)
        self._ready.clear()
        self._out.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
