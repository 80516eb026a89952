"""Where the sandboxes of all environments of this process live: one event loop on a thread of its own, one pool for
each backend.

Environments may be called from any thread or loop; what they wait for happens here.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from rollenv.sandboxes import Pool

T = TypeVar("T")

_CLOSE_SECONDS = 20.0


class SandboxLoop:
    """The loop and its pools. Made when the first environment needs a sandbox, closed with the last environment."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pools: dict[tuple[str | None, int], Pool] = {}
        self._turns: dict[int, asyncio.Semaphore] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandboxes", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts work on the loop; cancelling the future ends it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def pool(self, backend: str | None, max_live: int) -> Pool:
        """The pool of a backend (call it on the loop)."""
        key = backend, max_live
        if key not in self._pools:
            self._pools[key] = Pool(backend, max_live=max_live)
        return self._pools[key]

    def judging(self, at_once: int) -> asyncio.Semaphore:
        """Whose turn it is to be judged (call it on the loop)."""
        return self._turns.setdefault(at_once, asyncio.Semaphore(at_once))

    def close(self) -> None:
        """Closes all sandboxes and ends the thread, and the threads of its executor."""

        async def close_all() -> None:
            await asyncio.gather(*(pool.close() for pool in self._pools.values()), return_exceptions=True)
            await self._loop.shutdown_default_executor()

        with contextlib.suppress(TimeoutError):
            self.submit(close_all()).result(_CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()


_lock = threading.Lock()
_current: SandboxLoop | None = None
_users = 0


def join_loop() -> SandboxLoop:
    """This process's loop, for one more user, who leaves it with `leave_loop`."""
    global _current, _users
    with _lock:
        _users += 1
        if _current is None:
            _current = SandboxLoop()
        return _current


def leave_loop(loop: SandboxLoop) -> None:
    """One user less. With the last, all sandboxes are closed, those that were kept ready as well."""
    global _current, _users
    with _lock:
        if loop is not _current:
            return
        _users -= 1
        if _users:
            return
        _current = None
    loop.close()


def _close_at_exit() -> None:
    global _current
    with _lock:
        loop, _current = _current, None
    if loop is not None:
        loop.close()


# Before the threads of executors end, which closing needs; `atexit` comes after that. Where this function is gone, what
# is left is removed by whoever makes a sandbox next.
getattr(threading, "_register_atexit", atexit.register)(_close_at_exit)
