"""Daemon threads: one that runs calls in order, where a blocking environment lives without blocking the loop, and one
that runs an event loop, where what belongs to one loop lives and serves them all.

Unlike `concurrent.futures.ThreadPoolExecutor` they never keep the interpreter alive: a hung call is abandoned.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonThread:
    """Runs submitted calls one after another on a thread that dies with the process."""

    def __init__(self, name: str) -> None:
        self._stopped = False
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Queues `function`; its result or exception arrives in the returned future.

        Raises:
            RuntimeError: the thread was stopped, so that the future would never be done.
        """
        if self._stopped:
            raise RuntimeError(f"thread '{self._thread.name}' was stopped: it takes no more calls")
        future: Future[T] = Future()
        self._queue.put((future, function))
        return future

    def stop(self, timeout: float = 1.0) -> None:
        """Ends the thread after the calls already queued; gives up waiting after `timeout` seconds."""
        self._stopped = True
        self._queue.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            future, function = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del item, future, function


class LoopThread:
    """An event loop on a thread that dies with the process."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begins `work` there; its result or exception arrives in the returned future. Cancelling that cancels it.

        Raises:
            RuntimeError: the loop was stopped, so that the future would never be done.
        """
        if self.loop.is_closed():
            work.close()
            raise RuntimeError(f"thread '{self._thread.name}' was stopped: it takes no more work")
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def stop(self, timeout: float = 1.0) -> None:
        """Ends the loop, whatever it is at; gives up waiting for the thread after `timeout` seconds."""
        if self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self.loop.close()
