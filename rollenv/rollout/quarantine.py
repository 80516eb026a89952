"""Quarantine: tasks whose episodes fail for good again and again are played no more. A state machine without I/O.

Invariant: what is in quarantine follows from the groups that were booked, in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from rollenv.errors import RollenvError
from rollenv.rollout.groups import Group
from rollenv.rollout.sources import Draw, TaskSource
from rollenv.trajectory import StopReason, Trajectory


class Quarantine:
    """Counts final failures per task.

    Args:
        after: so many final failures take a task out; None: nothing does.

    >>> quarantine = Quarantine(after=2)
    >>> [quarantine.failed("a"), quarantine.failed("a"), "a" in quarantine]
    [False, True, True]
    """

    def __init__(self, after: int | None) -> None:
        if after is not None and after < 1:
            raise ValueError(f"a quarantine begins after at least 1 failure, not {after}")
        self._after = after
        self._failures: Counter[str] = Counter()

    def __contains__(self, task: object) -> bool:
        return self._after is not None and isinstance(task, str) and self._failures[task] >= self._after

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def tasks(self) -> list[str]:
        """The tasks that are out, sorted."""
        return sorted(task for task in self._failures if task in self)

    def failed(self, task: str) -> bool:
        """An episode of `task` has failed for good. Returns whether that took the task out."""
        before = task in self
        self._failures[task] += 1
        return not before and task in self

    def book(self, groups: Iterable[Group]) -> list[str]:
        """Counts the final failures in finished groups. Returns the tasks that this takes out."""
        episodes = (trajectory for group in groups for trajectory in group.trajectories)
        return [trajectory.task for trajectory in episodes if by_the_task(trajectory) and self.failed(trajectory.task)]

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable; `load_state_dict` reads it back."""
        return {"failures": dict(self._failures)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict`."""
        self._failures = Counter({task: int(count) for task, count in state["failures"].items()})


class Quarantined:
    """A source of tasks (`rollenv.rollout.sources`) that gives none in quarantine. Its state holds the quarantine's.

    Args:
        source: gives the tasks.
        tasks: all that it may give.
    """

    def __init__(self, source: TaskSource, quarantine: Quarantine, tasks: Collection[str]) -> None:
        self._source, self._quarantine, self._tasks = source, quarantine, tasks

    def draw(self) -> Draw:
        """The next task that may be played.

        Raises:
            RollenvError: there is none left.
        """
        while (draw := self._source.draw()).task in self._quarantine:
            if all(task in self._quarantine for task in self._tasks):
                raise RollenvError(
                    f"all {len(self._tasks)} tasks are in quarantine, because their episodes fail: mend the "
                    "environment, or set rollout.quarantine_after=none"
                )
        return draw

    def report(self, draw: Draw, successes: int, episodes: int) -> None:
        """Tells the source."""
        self._source.report(draw, successes, episodes)

    def state_dict(self) -> dict[str, Any]:
        """The source's state and the quarantine's."""
        return {"source": self._source.state_dict(), "quarantine": self._quarantine.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict`."""
        self._source.load_state_dict(state["source"])
        self._quarantine.load_state_dict(state["quarantine"])


def by_the_task(trajectory: Trajectory) -> bool:
    """Whether this final failure may be its task's fault: not that of the engine, nor of another episode."""
    failure = trajectory.failure
    return (
        trajectory.stop is StopReason.FAILED
        and failure is not None
        and failure.where != "engine"
        and not failure.collateral
    )
