"""The controller: feeds a trainer with batches of groups, never staler than eta. The I/O around a `SampleBuffer`.

Invariant: with eta = 0 and no redundancy the batch of version v is exactly the groups that a synchronous loop would
play with the weights of version v, whatever order they finish in.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from rollenv.errors import RollenvError
from rollenv.rollout.bias import BiasReport
from rollenv.rollout.buffer import Batch, SampleBuffer
from rollenv.rollout.groups import Group, GroupProgress, GroupRequest
from rollenv.rollout.scheduler import Scheduler


class RolloutController:
    """Admits groups, collects them into batches, and moves on when the weights do.

    Args:
        scheduler: plays the groups.
        buffer: decides which groups start and which make up a batch.
        bias: gets what was trained, to be compared with what was dispatched.
    """

    def __init__(self, scheduler: Scheduler, buffer: SampleBuffer, bias: BiasReport | None = None) -> None:
        self.scheduler, self.buffer = scheduler, buffer
        self.bias = bias if bias is not None else BiasReport()
        self._resumed: dict[int, GroupProgress] = {}
        self._lock = asyncio.Lock()

    @property
    def version(self) -> int:
        """Version of the weights that play."""
        return self.buffer.version

    def admit(self) -> None:
        """Starts as many groups as the bound allows."""
        for progress in self._resumed.values():
            self.scheduler.submit(progress.request, progress)
        self._resumed = {}
        for request in self.buffer.admit():
            self.scheduler.submit(request)

    async def next_batch(self) -> Batch:
        """Waits for the batch of the current version. What is surplus has ended, in engine and environment, when this
        returns.

        Raises:
            RollenvError: episodes fail and fail (see Scheduler).
        """
        async with self._lock:
            self.admit()
            while not self.buffer.full or self.scheduler.pending:
                self._handle(await self.scheduler.next_event())
                self.admit()
            surplus = self.buffer.close()
            self._discard(surplus.finished)
            await self.scheduler.cancel(surplus.running)
            batch = self.buffer.take()  # nothing is awaited after this: the batch is the caller's, or still here
        for group in batch.groups:
            self.bias.trained(group)
        for group in batch.idle:
            self.bias.passed(group)
        return batch

    def weights_updated(self, version: int) -> None:
        """The engine has new weights: more may start."""
        self._discard(self.buffer.weights_updated(version))
        with contextlib.suppress(RollenvError):  # there is no task left: `next_batch` says so, when the step is booked
            self.admit()

    def _handle(self, event: Group | int) -> None:
        if isinstance(event, Group):
            self.buffer.finished(event)
        else:
            self.buffer.straggles(event)

    def _discard(self, groups: Sequence[Group]) -> None:
        for group in groups:
            for trajectory in group.trainable:
                self.scheduler.ledger.discard(trajectory)

    def state_dict(self) -> dict[str, Any]:
        """Where everything stands: finished groups whole, unfinished ones with the episodes that have ended."""
        while self.scheduler.pending:
            self._handle(self.scheduler.take_event())
        progress = [*self._resumed.values(), *self.scheduler.unfinished]
        return {
            "buffer": self.buffer.state_dict(),
            "progress": [p.to_dict() for p in progress],
            "bias": self.bias.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict`; to be called before the first batch."""
        requests = self.buffer.load_state_dict(state["buffer"])
        known = {p.request.index: p for p in map(GroupProgress.from_dict, state["progress"])}
        self._resumed = {r.index: known.get(r.index) or GroupProgress(r) for r in requests}
        self.bias.load_state_dict(state["bias"])


async def collect(
    scheduler: Scheduler, requests: Sequence[GroupRequest], progress: Callable[[int], None] = lambda finished: None
) -> list[Group]:
    """Plays all of `requests` and returns their groups by index; `progress` gets the number finished so far."""
    groups = [group async for group in stream(scheduler, requests, progress)]
    return sorted(groups, key=lambda group: group.request.index)


async def stream(
    scheduler: Scheduler, requests: Sequence[GroupRequest], progress: Callable[[int], None] = lambda finished: None
) -> AsyncIterator[Group]:
    """Plays all of `requests` and gives their groups as they finish, for those who keep only a part of each."""
    for request in requests:
        scheduler.submit(request)
    for finished in range(1, len(requests) + 1):
        group = await scheduler.next_group()
        progress(finished)
        yield group
