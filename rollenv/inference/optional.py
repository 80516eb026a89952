"""What an engine may offer on top of the `Engine` protocol, and what is done with one that does not."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from rollenv.inference.base import Engine


@runtime_checkable
class Checked(Protocol):
    """An engine whose inside may die while its outside lives on."""

    async def check(self) -> None:
        """Returns when it is well.

        Raises:
            EngineDead: it has died.
        """
        ...


@runtime_checkable
class Sleeping(Protocol):
    """An engine that gives its devices' memory to somebody else for a while."""

    async def sleep(self) -> None:
        """Lets go of what it can: its cache at least. Completions that run, and those that are asked for meanwhile, go
        on when it wakes."""
        ...

    async def wake(self) -> None:
        """Takes its memory back and goes on. Its weights are those that it had. Awake, it does nothing."""
        ...


async def check(engine: Engine) -> None:
    """Raises EngineDead when the engine knows that it has died."""
    if isinstance(engine, Checked):
        await engine.check()


async def sleep(engine: Engine) -> None:
    """Sends an engine to sleep that can; any other one keeps what it has."""
    if isinstance(engine, Sleeping):
        await engine.sleep()


async def wake(engine: Engine) -> None:
    """Wakes it again."""
    if isinstance(engine, Sleeping):
        await engine.wake()
