"""An event loop whose clock jumps: whoever sleeps wakes at once, in the right order, and nothing depends on speed."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Does not wait for the next timer, but tells how long it would have."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None:
            self.skipped += max(timeout, 0.0)
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.skipped

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """At once: time would jump while a thread works."""
        future: asyncio.Future[T] = self.create_future()
        future.set_result(func(*args))
        return future


def run_jumping(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` with a clock that jumps."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(main)
