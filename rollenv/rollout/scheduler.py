"""The scheduler: keeps C episodes in flight, pulled from one queue; every sample is a task of its own.

Invariant: every episode of a submitted group is dispatched until it ends or has failed `max_attempts` times, and a
group is delivered exactly once, when its last episode has ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from rollenv.errors import RollenvError
from rollenv.rollout.episode import EpisodeRequest
from rollenv.rollout.groups import Group, GroupRequest
from rollenv.rollout.ledger import Ledger
from rollenv.rollout.play import Play
from rollenv.rollout.retries import next_try, spared
from rollenv.trajectory import StopReason, Trajectory


class Scheduler:
    """Runs episodes of groups.

    Args:
        play: plays one attempt of an episode.
        concurrency: C, episodes in flight at most.
        max_attempts: tries of one episode before it counts as failed for good (see `rollenv.rollout.retries`).
        ledger: where the counts go (a new one when None).
        give_up_after: raise when so many attempts in a row have failed, with nothing finishing in between: the
            environment or the engine is broken, not unlucky.
    """

    def __init__(
        self,
        play: Play,
        concurrency: int,
        max_attempts: int = 3,
        ledger: Ledger | None = None,
        give_up_after: int = 64,
    ) -> None:
        self._play = play
        self._concurrency = concurrency
        self._max_attempts = max_attempts
        self._give_up_after = max(give_up_after, 2 * concurrency)
        self.ledger = ledger if ledger is not None else Ledger()
        self._waiting: deque[EpisodeRequest] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._groups: dict[int, GroupRequest] = {}
        self._collected: dict[int, list[Trajectory]] = {}
        self._finished: asyncio.Queue[Group] = asyncio.Queue()
        self._failed_in_a_row = 0
        self._broken: asyncio.Future[None] | None = None

    def submit(self, request: GroupRequest) -> None:
        """Queues all episodes of a group."""
        if request.index in self._groups:
            raise ValueError(f"group {request.index} is already in the scheduler")
        self._groups[request.index] = request
        self._collected[request.index] = []
        self._waiting.extend(request.episodes())
        self._fill()

    @property
    def unfinished(self) -> list[GroupRequest]:
        """Groups submitted and not yet delivered to `next_group`'s queue."""
        return list(self._groups.values())

    @property
    def pending(self) -> int:
        """Finished groups that nobody has taken yet."""
        return self._finished.qsize()

    async def next_group(self) -> Group:
        """The next group to finish.

        Raises:
            RollenvError: episodes fail and fail, so nothing will finish.
        """
        if not self._finished.empty():  # without a turn of the loop, in which quick episodes would finish more
            return self._finished.get_nowait()
        if self._broken is None:
            self._broken = asyncio.get_running_loop().create_future()
        getter = asyncio.ensure_future(self._finished.get())
        try:
            waited: list[asyncio.Future[Any]] = [getter, self._broken]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if getter.done():
                return getter.result()
            self._broken.result()
            raise AssertionError("unreachable: the broken future carries an exception")
        finally:
            getter.cancel()

    async def close(self) -> None:
        """Cancels everything: queued episodes never start, running ones are aborted in engine and environment."""
        self._waiting.clear()
        self._groups.clear()
        self._collected.clear()  # so that nothing of what ends now is tried again or delivered
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._concurrency:
            request = self._waiting.popleft()
            task = asyncio.ensure_future(self._run(request))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error)
        self._fill()

    async def _run(self, request: EpisodeRequest) -> None:
        self.ledger.dispatch()  # here: a task that is cancelled before it begins was never dispatched
        try:
            trajectory = await self._play(request)
        except BaseException:
            self.ledger.settle(_lost(request))
            raise
        self.ledger.settle(trajectory)
        if request.group not in self._collected:
            return
        if trajectory.stop is StopReason.FAILED:
            self._failed_in_a_row += not spared(trajectory, request)
            if self._failed_in_a_row >= self._give_up_after:
                self._break(_gave_up(trajectory, self._failed_in_a_row))
                return
            if (again := next_try(trajectory, request, self._max_attempts)) is not None:
                self.ledger.retried += 1
                self._waiting.appendleft(again)
                return
        else:
            self._failed_in_a_row = 0
        self._collect(trajectory)

    def _collect(self, trajectory: Trajectory) -> None:
        collected = self._collected[trajectory.group]
        collected.append(trajectory)
        request = self._groups[trajectory.group]
        if len(collected) == request.size:
            del self._collected[trajectory.group], self._groups[trajectory.group]
            self._finished.put_nowait(Group(request, sorted(collected, key=lambda t: t.sample)))

    def _break(self, error: BaseException) -> None:
        if self._broken is None:
            self._broken = asyncio.get_running_loop().create_future()
        if not self._broken.done():
            self._broken.set_exception(error)
            self._broken.exception()  # marked as seen: whoever calls next_group gets it


def _lost(request: EpisodeRequest) -> Trajectory:
    """What the ledger books for an attempt whose player was itself torn down."""
    return Trajectory("", request.task, request.seed, request.group, request.sample, request.attempt)


def _gave_up(trajectory: Trajectory, failures: int) -> RollenvError:
    failure = trajectory.failure
    what = f"{failure.where} {failure.kind}: {failure.message}" if failure else "unknown fault"
    return RollenvError(
        f"{failures} episodes in a row failed and none finished; the last, of task '{trajectory.task}', with {what}"
    )
