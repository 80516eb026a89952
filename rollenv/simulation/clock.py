"""An event loop whose clock jumps to the next timer: hours of rollouts in seconds, in the order in which they happen.

Invariant: what is ready runs first come, first served, and the clock stands still meanwhile; when nothing is ready it
jumps to the earliest timer. Timers of one moment run in the order in which they were set. Nothing depends on how fast
the machine is.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import logging
import sys
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_log = logging.getLogger("asyncio")

_COMPACT = 256
"""Cancelled timers are swept out when there are so many, and more than there are live ones."""


class Stalled(RuntimeError):
    """Nothing is ready and no timer is set: everybody waits for something that will never happen."""


class _Call(asyncio.TimerHandle):
    """A callback to be made; much lighter than asyncio's own, of which it only has the outside."""

    __slots__ = ("arguments", "at", "call", "loop", "off", "scope")

    def __init__(
        self,
        call: Callable[..., object],
        arguments: tuple[Any, ...],
        scope: contextvars.Context | None,
        at: float = 0.0,
        loop: VirtualLoop | None = None,
    ) -> None:
        self.call, self.arguments, self.at, self.loop, self.off = call, arguments, at, loop, False
        self.scope = contextvars.copy_context() if scope is None else scope

    def __repr__(self) -> str:
        return f"<{'cancelled ' if self.off else ''}call of {self.call!r} at {self.at}>"

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def cancel(self) -> None:
        if not self.off:
            self.off = True
            if self.loop is not None:
                self.loop._sweep()

    def cancelled(self) -> bool:
        return self.off

    def when(self) -> float:
        return self.at


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop for work that only computes and sleeps: it has no sockets, pipes or signals.

    `run_in_executor` runs its function at once, as time would jump while a thread worked. Use it with `run_virtual`, or
    `asyncio.Runner(loop_factory=VirtualLoop)`.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._ready: deque[_Call] = deque()
        self._timers: list[tuple[float, int, _Call]] = []
        self._numbers = itertools.count()
        self._swept = 0
        self._stopping = self._closed = self._running = self._debug = False
        self._factory: Any = None
        self._handler: Any = None
        self._generators: weakref.WeakSet[AsyncGenerator[Any, Any]] = weakref.WeakSet()

    # -- time and callbacks --------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def call_soon(  # type: ignore[override] # of typeshed's TypeVarTuple nothing is needed here
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        call = _Call(callback, args, context)
        self._ready.append(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment] # signal handlers call it, between two callbacks

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        call = _Call(callback, args, context, when, self)
        heapq.heappush(self._timers, (when, next(self._numbers), call))
        return call

    def _sweep(self) -> None:
        """A timer was cancelled: they are taken out when they are most of the heap."""
        self._swept += 1
        if self._swept > _COMPACT and 2 * self._swept > len(self._timers):
            self._timers[:] = [entry for entry in self._timers if not entry[2].off]
            heapq.heapify(self._timers)
            self._swept = 0

    # -- running ---------------------------------------------------------------------------------------------

    def run_forever(self) -> None:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        if self._running or asyncio._get_running_loop() is not None:
            raise RuntimeError("Cannot run the event loop while another loop is running")
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._generators.add, finalizer=self._finalize)
        self._running = True
        asyncio._set_running_loop(self)
        try:
            while not self._stopping:
                self._turn()
        finally:
            self._running = self._stopping = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _turn(self) -> None:
        """Makes the callbacks that are ready now; those that they add come in the next turn."""
        ready, timers = self._ready, self._timers
        if not ready:
            while timers and timers[0][2].off:
                heapq.heappop(timers)
                self._swept -= 1
            if not timers:
                raise Stalled("every task waits for something that will never happen: no timer is set")
            self._now = max(self._now, timers[0][0])
        now = self._now
        while timers and timers[0][0] <= now:
            call = heapq.heappop(timers)[2]
            call.loop = None  # cancelling it from now on leaves nothing in the heap
            if call.off:
                self._swept -= 1
            else:
                ready.append(call)
        for _ in range(len(ready)):
            call = ready.popleft()
            if call.off:
                continue
            try:
                call.scope.run(call.call, *call.arguments)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"Exception in {call!r}", "exception": error})

    def run_until_complete(self, future: Any) -> Any:
        task = asyncio.ensure_future(future, loop=self)
        task.add_done_callback(self._stop_with)
        try:
            self.run_forever()
        except BaseException:
            if task.done() and not task.cancelled():
                task.exception()  # raised below by nobody: the loop's own error says more
            raise
        finally:
            task.remove_done_callback(self._stop_with)
        if not task.done():
            raise RuntimeError("Event loop stopped before Future completed.")
        return task.result()

    def _stop_with(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled() or not isinstance(future.exception(), (SystemExit, KeyboardInterrupt)):
            self.stop()

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        if self._running:
            raise RuntimeError("Cannot close a running event loop")
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    def _finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators.discard(generator)
        if not self._closed:
            self.create_task(_close(generator))

    async def shutdown_asyncgens(self) -> None:
        closing, self._generators = list(self._generators), weakref.WeakSet()
        await asyncio.gather(*(_close(generator) for generator in closing), return_exceptions=True)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        return None

    # -- futures, tasks, threads, errors -----------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        if self._factory is not None:
            made: asyncio.Task[Any] = self._factory(self, coro, **options)
            return made
        return asyncio.Task(coro, loop=self, **options)

    def set_task_factory(self, factory: Any) -> None:
        self._factory = factory

    def get_task_factory(self) -> Any:
        return self._factory

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Runs `func` here and now."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def get_debug(self) -> bool:
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        self._debug = enabled

    def set_exception_handler(self, handler: Any) -> None:
        self._handler = handler

    def get_exception_handler(self) -> Any:
        return self._handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        facts = [f"{key}: {value!r}" for key, value in sorted(context.items()) if key not in ("message", "exception")]
        error = context.get("exception")
        _log.error("\n".join([context.get("message", "an error in the event loop"), *facts]), exc_info=error)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._handler is not None:
            self._handler(self, context)
        else:
            self.default_exception_handler(context)


async def sleep(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """`asyncio.sleep` for those who know their loop, which is otherwise looked up each time."""
    if seconds <= 0:
        return
    woken = loop.create_future()
    timer = loop.call_later(seconds, _wake, woken)
    try:
        await woken
    finally:
        timer.cancel()


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


async def _close(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` with a clock that jumps, beginning at 0.

    Raises:
        Stalled: everybody waits for something that will never happen.

    >>> run_virtual(asyncio.sleep(3600, "an hour later"))
    'an hour later'
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
