"""Deadlines of a task that share one timer: an episode sets two in each turn, and nearly none of them ever passes.

Invariant: a deadline behaves as `asyncio.timeout` does. When it passes, the task is cancelled once; the block that the
deadline is for turns that cancellation into a `TimeoutError`, unless somebody else has cancelled the task as well.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from types import TracebackType

_watches: contextvars.ContextVar[Watch | None] = contextvars.ContextVar("rollenv_watch", default=None)


class Deadline:
    """A block of code that must end `seconds` after it begins; None: no bound. Made by `Watch.within`."""

    __slots__ = ("_before", "_watch", "expired", "seconds", "when")

    def __init__(self, watch: Watch, seconds: float | None) -> None:
        self._watch, self.seconds = watch, seconds
        self.when = math.inf
        self.expired = False

    def __enter__(self) -> Deadline:
        watch = self._watch
        self._before = watch.task.cancelling()
        if self.seconds is not None:
            self.when = watch.loop.time() + self.seconds
            watch.open.append(self)
            if self.when < watch.next:
                watch.arm(self.when)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.seconds is not None:
            self._watch.open.remove(self)
        if self._watch.alone:
            self._watch.close()
        if self.expired and self._watch.task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error


class Watch:
    """Watches over the deadlines of the task that makes it.

    The timer stays when a block ends in time: it is moved when it rings too early, so that a block of milliseconds
    under a deadline of a minute touches no timer at all. `close` takes it away.

    Args:
        alone: it is there for one deadline and ends with it.
    """

    __slots__ = ("_timer", "alone", "loop", "next", "open", "task")

    def __init__(self, alone: bool = False) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("deadlines are for the inside of a task")
        self.task, self.loop = task, asyncio.get_running_loop()
        self.alone = alone
        self.open: list[Deadline] = []
        self.next = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def within(self, seconds: float | None) -> Deadline:
        """A deadline for a `with` block."""
        return Deadline(self, seconds)

    def arm(self, when: float) -> None:
        """Rings at `when`, in the loop's seconds."""
        if self._timer is not None:
            self._timer.cancel()
        self.next = when
        self._timer = self.loop.call_at(when, self._ring)

    def close(self) -> None:
        """No deadline is open any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.next = None, math.inf

    def _ring(self) -> None:
        # A loop rings up to its clock's resolution early: what was due when the timer was set is due now.
        now, self._timer = max(self.loop.time(), self.next), None
        self.next = math.inf
        for deadline in self.open:
            if deadline.when <= now and not deadline.expired:
                deadline.expired = True
                self.task.cancel()
        due = min((deadline.when for deadline in self.open if not deadline.expired), default=math.inf)
        if due < math.inf:
            self.arm(due)


class watching:
    """A block in which the deadlines of the current task share one `Watch` (`own_watch` finds it)."""

    __slots__ = ("_token", "_watch")

    def __enter__(self) -> Watch:
        self._watch = Watch()
        self._token = _watches.set(self._watch)
        return self._watch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _watches.reset(self._token)
        self._watch.close()


def own_watch() -> Watch:
    """The current task's watch: that of its episode when it has one, else a new one for a single deadline."""
    watch = _watches.get()
    # A task that an episode started has the episode's context, but deadlines of its own.
    if watch is None or watch.task is not asyncio.current_task():
        return Watch(alone=True)
    return watch
