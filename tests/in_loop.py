"""Tests that are coroutines."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a coroutine function as a test, in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **words: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **words), 120))

    return run
