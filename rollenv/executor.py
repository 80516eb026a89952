"""One daemon thread that runs calls in order: where a blocking environment lives without blocking the loop.

Unlike `concurrent.futures.ThreadPoolExecutor` it never keeps the interpreter alive: a hung call is abandoned.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
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
