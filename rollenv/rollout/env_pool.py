"""A pool of environments of one kind: reused after a clean episode, replaced after a fault."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rollenv.core import TextEnv


class EnvPool:
    """Environments made by `make`, handed out one episode at a time."""

    def __init__(self, make: Callable[[], TextEnv]) -> None:
        self._make = make
        self._idle: list[TextEnv] = []

    def acquire(self) -> TextEnv:
        """An idle environment, or a new one."""
        return self._idle.pop() if self._idle else self._make()

    def release(self, env: TextEnv, healthy: bool) -> None:
        """Takes one back. An unhealthy one is never used again; closing it may hang, so nobody waits for that."""
        if healthy:
            self._idle.append(env)
        else:
            threading.Thread(target=_close_quietly, args=(env,), name="env-discard", daemon=True).start()

    def close(self) -> None:
        """Closes the idle ones."""
        while self._idle:
            _close_quietly(self._idle.pop())


def _close_quietly(env: TextEnv) -> None:
    try:
        env.close()
    except Exception:
        # It is being thrown away: what it says on closing changes nothing for anyone.
        return
