"""The scheduler: keeps C episodes in flight, pulled from one queue; every sample is a task of its own.

Invariant: every episode of a submitted group is dispatched until it ends, has failed `max_attempts` times, or is not
needed any more; a group is delivered exactly once, when the episodes that count have ended, unless it is cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace

from rollenv.errors import RollenvError
from rollenv.rollout.branch_points import BranchPoints
from rollenv.rollout.branching import Branching, GroupBranches, Next
from rollenv.rollout.episode import EpisodeRequest
from rollenv.rollout.groups import Group, GroupProgress, GroupRequest
from rollenv.rollout.ledger import Ledger
from rollenv.rollout.play import Play
from rollenv.rollout.retries import next_try, spared
from rollenv.trajectory import StopReason, Trajectory

OnEpisode = Callable[[Trajectory], None]
"""Gets the trajectory of every attempt at an episode of a group when it ends."""


class Scheduler:
    """Runs episodes of groups.

    Args:
        play: plays one attempt of an episode.
        concurrency: C, episodes in flight at most.
        max_attempts: tries of one episode before it counts as failed for good (see `rollenv.rollout.retries`).
        ledger: where the counts go (a new one when None).
        give_up_after: raise when so many attempts in a row have failed, with nothing finishing in between: the
            environment or the engine is broken, not unlucky.
        straggler_seconds: an attempt that takes longer is late, which matters where a spare can take its place.
        on_episode: gets the trajectory of every attempt that ends, but not those of branches that only value others.
        branching: how episodes branch. Branches are episodes like all others: they take places, are tried again, and
            are in the ledger; they go first, as the states where they start are kept until the last one is over.
    """

    def __init__(
        self,
        play: Play,
        concurrency: int,
        max_attempts: int = 3,
        ledger: Ledger | None = None,
        give_up_after: int = 64,
        straggler_seconds: float | None = None,
        on_episode: OnEpisode = lambda trajectory: None,
        branching: Branching | None = None,
    ) -> None:
        self._play = play
        self._concurrency = concurrency
        self._max_attempts = max_attempts
        self._give_up_after = max(give_up_after, 2 * concurrency)
        self._straggler_seconds, self._on_episode = straggler_seconds, on_episode
        self._branching = branching if branching is not None else Branching()
        self.ledger = ledger if ledger is not None else Ledger()
        self._waiting: deque[tuple[GroupProgress, EpisodeRequest]] = deque()
        self._running: dict[asyncio.Task[None], tuple[GroupProgress, int]] = {}
        self._of_group: dict[GroupProgress, set[asyncio.Task[None]]] = {}
        self._groups: dict[int, GroupProgress] = {}
        self._branches: dict[GroupProgress, GroupBranches] = {}
        self._ending: set[asyncio.Task[None]] = set()  # cancelled, or freeing a session, and not over
        self._events: deque[Group | int] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._broken: BaseException | None = None
        self._failed_in_a_row = 0
        self._held = False

    def submit(self, request: GroupRequest, progress: GroupProgress | None = None) -> None:
        """Queues all episodes of a group.

        Args:
            progress: how far it came before (on resume): what has ended is not played again.
        """
        if request.index in self._groups:
            raise ValueError(f"group {request.index} is already in the scheduler")
        progress = progress or GroupProgress(request)
        if progress.complete:
            self._tell(progress.group())
            return
        self._groups[request.index] = progress
        self._of_group[progress] = set()
        branches = self._branches[progress] = self._branching.of(request)
        if (tree := self._branching.tree) is not None:
            for trajectory in progress.forget(tree.torn(request.size + request.extra, progress.open)):
                self.ledger.take_back(trajectory)
        missing = set(progress.open)
        episodes = [replace(e, attempt=progress.attempts.get(e.sample, 0)) for e in request.episodes()]
        for episode in branches.begin([e for e in episodes if e.sample in missing]):
            self._waiting.append((progress, episode))
        self._fill()

    @property
    def unfinished(self) -> list[GroupProgress]:
        """Groups submitted whose episodes have not all ended."""
        return list(self._groups.values())

    @property
    def pending(self) -> int:
        """Finished groups (and stragglers seen) that nobody has taken yet."""
        return len(self._events)

    @property
    def queued(self) -> int:
        """Episodes that wait for a place."""
        return sum(progress in self._of_group for progress, _ in self._waiting)

    @property
    def in_flight(self) -> int:
        """Episodes being played."""
        return len(self._running)

    def take_event(self) -> Group | int:
        """An event that is pending. Raises IndexError when there is none."""
        return self._events.popleft()

    async def next_event(self) -> Group | int:
        """The next group to finish, or the index of a group that waits for a straggler with no spare left. One caller
        at a time.

        Raises:
            RollenvError: episodes fail and fail, so nothing will finish.
        """
        while not self._events:
            if self._broken is not None:
                raise self._broken
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        return self.take_event()

    async def next_group(self) -> Group:
        """The next group to finish.

        Raises:
            RollenvError: episodes fail and fail, so nothing will finish.
        """
        while True:
            event = await self.next_event()
            if isinstance(event, Group):
                return event

    async def cancel(self, indices: Collection[int]) -> None:
        """Drops groups: their queued episodes never start, their running ones are aborted in engine and environment
        before this returns, and so are spares of groups that have become complete. Groups that are not here are
        ignored."""
        for index in indices:
            if (progress := self._groups.pop(index, None)) is not None:
                for trajectory in progress.ended_episodes:
                    self.ledger.discard(trajectory)
                self._stop(progress)
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def drain(self) -> None:
        """Starts nothing more until `go_on`, and waits until nothing runs."""
        self._held = True
        while self._running:
            await asyncio.wait(set(self._running))

    def go_on(self) -> None:
        """Ends `drain`."""
        self._held = False
        self._fill()

    async def close(self) -> None:
        """Cancels everything: queued episodes never start, running ones are aborted in engine and environment."""
        self._waiting.clear()
        self._groups.clear()
        self._of_group.clear()  # so that nothing of what ends now is tried again or delivered
        running = list(self._running)
        for task in running:
            task.cancel()
        for branches in self._branches.values():
            self._free(branches.close().free)
        self._branches.clear()
        await asyncio.gather(*running, *self._ending, return_exceptions=True)

    def _stop(self, progress: GroupProgress) -> None:
        """Nothing more of this group is needed."""
        for task in self._of_group.pop(progress):
            task.cancel()
            self._ending.add(task)
        rest = self._branches.pop(progress).close()
        for trajectory in rest.waste:
            self.ledger.discard(trajectory)
        self._free(rest.free)

    def _free(self, points: Collection[BranchPoints]) -> None:
        """Frees the sessions of episodes from which nobody starts any more, aside."""
        for each in points:
            task = asyncio.ensure_future(each.close())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._concurrency and not self._held:
            progress, request = self._waiting.popleft()
            if progress not in self._of_group:
                continue  # its group is complete or cancelled
            task = asyncio.ensure_future(self._run(progress, request))
            self._running[task] = (progress, request.sample)
            self._of_group[progress].add(task)
            task.add_done_callback(self._ended)
            if self._straggler_seconds is not None and progress.request.selection == "unbiased":
                asyncio.get_running_loop().call_later(self._straggler_seconds, self._late, task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        progress, _ = self._running.pop(task)
        self._ending.discard(task)
        if progress in self._of_group:
            self._of_group[progress].discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error)
        self._fill()

    def _late(self, task: asyncio.Task[None]) -> None:
        if task not in self._running:
            return
        progress, sample = self._running[task]
        if progress in self._of_group:
            progress.late(sample)
            self._look(progress)
            if progress in self._of_group and progress.straggles:
                self._tell(progress.request.index)

    async def _run(self, progress: GroupProgress, request: EpisodeRequest) -> None:
        task = asyncio.current_task()
        assert task is not None
        if progress in self._branches:
            request = self._branches[progress].prepared(request)
        self.ledger.dispatch()  # here: a task that is cancelled before it begins was never dispatched
        try:
            trajectory = await self._play(request)
        except BaseException:
            self.ledger.settle(_lost(request))
            raise
        self.ledger.settle(trajectory)
        if request.branch is None:
            self._on_episode(trajectory)
        if progress not in self._of_group:
            if request.points is not None:
                self._free([request.points])
            return
        self._of_group[progress].discard(task)  # it has ended: nothing is left to cancel
        branches = self._branches[progress]
        if trajectory.stop is not StopReason.FAILED:
            self._failed_in_a_row = 0
            self._go_on(progress, branches.ended(request, trajectory))
        elif not self._try_again(progress, request, trajectory):
            self._go_on(progress, branches.lost(request, trajectory))

    def _go_on(self, progress: GroupProgress, step: Next) -> None:
        """What follows when an episode of a group is over."""
        self._waiting.extendleft((progress, request) for request in reversed(step.play))
        for trajectory in step.waste:
            self.ledger.discard(trajectory)
        for trajectory in step.ended:
            progress.ended(trajectory)
        for trajectory in step.lost:
            progress.lost(trajectory)
        self._free(step.free)
        self._look(progress)

    def _try_again(self, progress: GroupProgress, request: EpisodeRequest, trajectory: Trajectory) -> bool:
        """Whether a failed attempt is followed by another (or by the end of all)."""
        if not spared(trajectory, request):
            self._failed_in_a_row += 1
            if request.branch is None:
                progress.attempts[request.sample] = request.attempt + 1
        if self._failed_in_a_row >= self._give_up_after:
            self._break(_gave_up(trajectory, self._failed_in_a_row))
            return True
        if (again := next_try(trajectory, request, self._max_attempts)) is not None:
            self.ledger.retried += 1
            self._waiting.appendleft((progress, again))
            return True
        return False

    def _look(self, progress: GroupProgress) -> None:
        """Delivers a group that has become complete, and stops what of it still runs."""
        if progress.complete:
            del self._groups[progress.request.index]
            group = progress.group()
            needed = {id(trajectory) for trajectory in group.trajectories}
            for trajectory in progress.ended_episodes:
                if id(trajectory) not in needed:
                    self.ledger.discard(trajectory)
            self._stop(progress)
            self._tell(group)

    def _tell(self, event: Group | int) -> None:
        self._events.append(event)
        self._wake_up()

    def _break(self, error: BaseException) -> None:
        self._broken = self._broken or error
        self._wake_up()

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def _lost(request: EpisodeRequest) -> Trajectory:
    """What the ledger books for an attempt whose player was itself torn down."""
    return Trajectory("", request.task, request.seed, request.group, request.sample, request.attempt)


def _gave_up(trajectory: Trajectory, failures: int) -> RollenvError:
    failure = trajectory.failure
    what = f"{failure.where} {failure.kind}: {failure.message}" if failure else "unknown fault"
    return RollenvError(
        f"{failures} episodes in a row failed and none finished; the last, of task '{trajectory.task}', with {what}"
    )
