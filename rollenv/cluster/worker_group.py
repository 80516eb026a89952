"""Several workers of one kind, called as one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from rollenv.cluster.runtime import Handle, Runtime, WorkerSpec


class WorkerGroup:
    """N workers, by rank. When one fails in a call the error is raised at once: the others may be waiting for it for
    ever, and whoever called decides what becomes of them (`kill`).

    Args:
        handles: by rank.
    """

    def __init__(self, handles: Sequence[Handle]) -> None:
        if not handles:
            raise ValueError("a group needs at least one worker")
        self.handles = list(handles)

    @classmethod
    async def start(cls, runtime: Runtime, specs: Sequence[WorkerSpec]) -> WorkerGroup:
        """Starts the workers side by side: those that have to find each other while they are made do.

        Raises:
            WorkerDied: one could not be started (those that could are killed).
        """
        started = await asyncio.gather(*(runtime.start(spec) for spec in specs), return_exceptions=True)
        errors = [one for one in started if isinstance(one, BaseException)]
        if errors:
            for one in started:
                if not isinstance(one, BaseException):
                    one.kill()
            raise errors[0]
        return cls([one for one in started if not isinstance(one, BaseException)])

    def __len__(self) -> int:
        return len(self.handles)

    async def broadcast(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """The same call of every rank; results by rank. What is large among `args` should be a reference."""
        return await self._all([handle.call(method, *args, **kwargs) for handle in self.handles])

    async def scatter(self, method: str, parts: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Rank i gets `parts[i]` as first argument; results by rank.

        Raises:
            ValueError: not one part per rank.
        """
        if len(parts) != len(self.handles):
            raise ValueError(f"{len(parts)} parts for {len(self.handles)} ranks")
        return await self._all(
            [h.call(method, part, *args, **kwargs) for h, part in zip(self.handles, parts, strict=True)]
        )

    async def rank_zero(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """A call of the first rank alone."""
        return await self.handles[0].call(method, *args, **kwargs)

    async def stop(self) -> None:
        """Ends all."""
        await asyncio.gather(*(handle.stop() for handle in self.handles), return_exceptions=True)

    def kill(self) -> None:
        """Ends all as crashes would."""
        for handle in self.handles:
            handle.kill()

    async def _all(self, calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        tasks = [asyncio.ensure_future(call) for call in calls]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
