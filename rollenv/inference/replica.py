"""One replica as `LLMProxy` sees it: an engine, the calls under way in it, and how long it has been silent.

Invariant: `Replica.give_up` ends every call under way, whatever the engine does with it. A replica that leaves a call
unanswered for too long is reported, also when its callers lose patience first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType

from rollenv.inference.base import Engine, EngineError


class Silence:
    """How long somebody has had work and given no answer; `now` is in seconds, of any clock.

    Time without work does not count. Work that is cancelled is no answer: a replica whose callers lose patience is as
    silent as before when the next one asks.
    """

    def __init__(self) -> None:
        self._n = 0
        self._since = 0.0
        self._before = 0.0

    def begin(self, now: float) -> None:
        """There is one more piece of work."""
        if self._n == 0:
            self._since = now
        self._n += 1

    def answer(self, now: float) -> None:
        """A piece of work was done."""
        self._since, self._before = now, 0.0

    def end(self, now: float) -> None:
        """There is one piece of work less, done or not."""
        self._n -= 1
        if self._n == 0:
            self._before += now - self._since

    def reaches(self, seconds: float) -> float | None:
        """When the silence will have lasted so long; None while there is no work."""
        return self._since - self._before + seconds if self._n else None


class Call:
    """Awaits something until it returns or somebody calls `interrupt`: `with Call(calls) as call: ...`.

    What `interrupt` ends looks from inside like a cancellation, and from outside as if the block had come to its end,
    with `interrupted` True. A cancellation of the task itself goes through as ever (compare `asyncio.timeout`).

    Args:
        calls: has the call as long as it is under way.
    """

    def __init__(self, calls: set[Call]) -> None:
        self._calls = calls
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self.interrupted = False

    def __enter__(self) -> Call:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        self._calls.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        assert self._task is not None
        self._calls.discard(self)
        return self.interrupted and self._task.uncancel() <= self._cancelling

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled the task since the block began; if not, a CancelledError is the engine's."""
        return self._task is not None and self._task.cancelling() > self._cancelling

    def interrupt(self) -> None:
        """Ends the block."""
        if not self.interrupted and self._task is not None:
            self.interrupted = True
            self._task.cancel()


class Replica:
    """An engine under a name.

    Args:
        stall_seconds: bound on its silence while it makes completions, and on each other call; None: no bound.
        on_stall: is told when a bound is passed.
    """

    def __init__(
        self, name: str, engine: Engine, stall_seconds: float | None, on_stall: Callable[[Replica], None]
    ) -> None:
        self.name, self.engine = name, engine
        self._stall_seconds, self._on_stall = stall_seconds, on_stall
        self._timer: asyncio.TimerHandle | None = None
        self.forget_loop()

    def forget_loop(self) -> None:
        """Nothing is under way: what was, was so in another event loop."""
        self.leaving: asyncio.Task[Engine] | None = None
        """What drains it."""
        self.idle: asyncio.Future[None] | None = None
        """Done when nothing runs on it any more; fails when it is given up first."""
        self._calls: set[Call] = set()
        self._silence = Silence()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    @contextlib.contextmanager
    def completion(self) -> Iterator[Call]:
        """Awaits a completion. All of them share one silence, because an engine may queue them."""
        loop, silence = asyncio.get_running_loop(), self._silence
        silence.begin(loop.time())
        if self._timer is None:
            self._watch()
        try:
            with Call(self._calls) as call:
                yield call
        finally:
            silence.end(loop.time())

    def answered(self) -> None:
        """It has made a completion."""
        self._silence.answer(asyncio.get_running_loop().time())

    @contextlib.contextmanager
    def control(self) -> Iterator[Call]:
        """Awaits anything else, on a bound of its own: taking new weights does not prove that it still generates."""
        timer = None
        if self._stall_seconds is not None:
            timer = asyncio.get_running_loop().call_later(self._stall_seconds, self._on_stall, self)
        try:
            with Call(self._calls) as call:
                yield call
        finally:
            if timer is not None:
                timer.cancel()

    def give_up(self, error: EngineError) -> None:
        """Ends all calls and the watch over them; who waits for it to be idle gets `error`."""
        for call in list(self._calls):
            call.interrupt()
        if self.idle is not None and not self.idle.done():
            self.idle.set_exception(error)
        self.forget_loop()

    def _watch(self) -> None:
        """Looks again when the silence may have become too long: one timer, however many completions there are."""
        self._timer = None
        if self._stall_seconds is None or (due := self._silence.reaches(self._stall_seconds)) is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= due:
            self._on_stall(self)
        else:
            self._timer = loop.call_at(due, self._watch)
