"""The controller: feeds a trainer with batches of groups, never staler than eta.

Invariant: with eta = 0 the batch of version v is exactly the groups that a synchronous loop would play with the
weights of version v, whatever order they finish in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollenv.rollout.groups import Group, GroupRequest
from rollenv.rollout.quarantine import Quarantine
from rollenv.rollout.scheduler import Scheduler
from rollenv.rollout.selection import FilterMode, Worth, episode_return, has_signal
from rollenv.rollout.staleness import admissible, due
from rollenv.seeding import TaskOrder

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Batch:
    """The groups of one training step, by index; `idle` are those without signal, played but not trained."""

    version: int
    groups: list[Group]
    idle: list[Group] = field(default_factory=list)

    @property
    def played(self) -> list[Group]:
        """Every group that was finished for this batch."""
        return sorted([*self.groups, *self.idle], key=lambda group: group.request.index)

    @property
    def staleness(self) -> list[int]:
        """Per trained group, how many versions old its oldest token is."""
        return [self.version - group.oldest_version for group in self.groups]


class RolloutController:
    """Admits groups, collects them into batches, and moves on when the weights do.

    Args:
        scheduler: plays the groups.
        order: the endless order of tasks; group i plays `order[i]`.
        batch_groups: B, groups per training step.
        group_size: n, episodes per group.
        run_seed: decides every episode's seed.
        eta: bound on staleness in versions; 0 is synchronous.
        filter_mode: what to do with groups without signal.
        max_refills: with `refill`, at most so many groups are replaced per batch.
        worth: what an episode is worth to the trainer; a group whose episodes are all worth the same has no signal.
        quarantine: the tasks that are played no more; they are found among the batches' failed episodes.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        order: TaskOrder,
        batch_groups: int,
        group_size: int,
        run_seed: int,
        eta: float = 0.0,
        filter_mode: FilterMode = "drop",
        max_refills: int = 32,
        worth: Worth = episode_return,
        quarantine: Quarantine | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._order, self._batch, self._size, self._seed = order, batch_groups, group_size, run_seed
        self._eta, self._filter, self._max_refills, self._worth = eta, filter_mode, max_refills, worth
        self.quarantine = quarantine if quarantine is not None else Quarantine(None)
        self.version = 0
        self._cursor = 0
        self._accepted = 0
        self._running: dict[int, GroupRequest] = {}
        self._ready: list[Group] = []
        self._idle: list[Group] = []
        self._again: list[int] = []
        self._lock = asyncio.Lock()

    def admit(self) -> None:
        """Starts as many groups as the bound allows."""
        taken = self._accepted + len(self._running)
        for _ in range(admissible(self._eta, self.version, self._batch, taken)):
            if self._again:
                index = self._again.pop(0)
            else:
                index = self.quarantine.first_free(self._cursor, self._order.__getitem__)
                self._cursor = index + 1
            request = GroupRequest(index, self._order[index], self._size, self._seed, self.version)
            self._running[index] = request
            self.scheduler.submit(request)

    async def next_batch(self) -> Batch:
        """Waits for the batch of the current version.

        Raises:
            RollenvError: episodes fail and fail (see Scheduler).
        """
        async with self._lock:
            self.admit()
            while not self._complete():
                self._take(await self.scheduler.next_group())
                self.admit()
            while self.scheduler.pending:
                self._take(await self.scheduler.next_group())
            # The oldest first: what is left can wait longer.
            self._ready.sort(key=lambda group: (group.request.version, group.request.index))
            chosen, self._ready = self._ready[: self._batch], self._ready[self._batch :]
            idle, self._idle = self._idle, []
        signal = [g for g in chosen if self._filter == "keep" or has_signal(g, self._worth)]
        idle += [g for g in chosen if g not in signal]
        batch = Batch(self.version, sorted(signal, key=lambda group: group.request.index), idle)
        # Here, not as groups finish: what a seed decides must not depend on who was first.
        for task in self.quarantine.book(batch.played):
            log.warning("task '%s' is in quarantine: its episodes failed for good too often", task)
        return batch

    def weights_updated(self, version: int) -> None:
        """The engine has new weights: more may start."""
        self.version = version
        self.admit()

    def _complete(self) -> bool:
        if len(self._ready) < self._batch:
            return False
        return not any(due(self._eta, self.version, request.version) for request in self._running.values())

    def _take(self, group: Group) -> None:
        del self._running[group.request.index]
        if self._filter == "refill" and not has_signal(group, self._worth) and len(self._idle) < self._max_refills:
            self._idle.append(group)  # its place is free again: admit() fills it
            return
        self._accepted += 1
        self._ready.append(group)

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands, between two batches. Groups begun but not trained are listed to be played again."""
        finished = (group.request.index for group in [*self._ready, *self._idle])
        begun = [*self._running, *finished, *self._again]
        return {
            "version": self.version,
            "cursor": self._cursor,
            "accepted": self._accepted - len(self._ready),
            "again": sorted(begun),
            "quarantine": self.quarantine.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict`; to be called before the first batch."""
        self.version = int(state["version"])
        self._cursor = int(state["cursor"])
        self._accepted = int(state["accepted"])
        self._again = [int(index) for index in state["again"]]
        if "quarantine" in state:
            self.quarantine.load_state_dict(state["quarantine"])


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
