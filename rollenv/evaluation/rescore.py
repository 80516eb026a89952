"""Stored episodes under today's environment: their actions are played again, and what they earn now is theirs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollenv.errors import RollenvError
from rollenv.evaluation.records import TRAJECTORIES, episode_lines
from rollenv.rollout.env_pool import Environments
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.play import play_again
from rollenv.rollout.replay import differs_at
from rollenv.tasks import Panel, TaskSet
from rollenv.trajectory import StopReason, Trajectory


@dataclass(frozen=True, slots=True)
class Rescored:
    """What became of the episodes of an evaluation.

    Attributes:
        before, after: the episodes, in the same order; one that had failed is left as it was.
        rewards, successes: how many have another reward, and another success.
        otherwise: those in which the environment said something else than before, each with the first such turn.
    """

    before: list[Trajectory]
    after: list[Trajectory]

    @property
    def rewards(self) -> int:
        return sum(old.reward != new.reward for old, new in self._pairs())

    @property
    def successes(self) -> int:
        return sum(bool(old.success) != bool(new.success) for old, new in self._pairs())

    @property
    def otherwise(self) -> list[tuple[Trajectory, int]]:
        found = [(new, differs_at(old, new)) for old, new in self._pairs()]
        return [(new, turn) for new, turn in found if turn is not None]

    def _pairs(self) -> list[tuple[Trajectory, Trajectory]]:
        return list(zip(self.before, self.after, strict=True))


def stored_episodes(folder: Path) -> list[Trajectory]:
    """The episodes of an evaluation, in the panel's order.

    Raises:
        RollenvError: they cannot be read, or a line is torn.
    """
    file = folder / TRAJECTORIES
    try:
        episodes = _episodes(file)
    except OSError as error:
        raise RollenvError(f"cannot read '{file}': {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RollenvError(f"'{file}': {error}") from error
    if any("harness" in episode.info for episode in episodes):
        raise RollenvError(
            f"'{file}': the agent was a program in the sandbox; what it did there is not in them, to be played again"
        )
    return episodes


def _episodes(file: Path) -> list[Trajectory]:
    lines = [{key: value for key, value in line.items() if key != "tasks_sha256"} for line in episode_lines(file)]
    return [Trajectory.from_dict(line) for line in lines]


def panel_of(tasks: TaskSet, split: str, episodes: Sequence[Trajectory]) -> Panel:
    """The tasks of stored episodes as they are now.

    Raises:
        RollenvError: one is not there any more.
    """
    ids = tuple(dict.fromkeys(episode.task for episode in episodes))
    for task in ids:
        tasks.split_of(task)
    return Panel(split, ids, tasks.sha256(ids))


async def rescore(
    pool: Environments,
    env_name: str,
    episodes: Sequence[Trajectory],
    limits: EpisodeLimits,
    concurrency: int,
    max_attempts: int = 3,
    progress: Callable[[int], None] = lambda finished: None,
) -> Rescored:
    """Plays the actions of stored episodes again.

    Args:
        limits: of time; each episode has the turns that it had.
        max_attempts: how often one is tried whose environment fails.
        progress: gets the number of episodes finished so far.
    """
    room, finished = asyncio.Semaphore(concurrency), itertools.count(1)

    async def again(recorded: Trajectory) -> Trajectory:
        played = recorded
        async with room:
            for _ in range(0 if recorded.stop is StopReason.FAILED else max_attempts):
                played = await play_again(pool, env_name, recorded, limits)
                if played.stop is not StopReason.FAILED:
                    break
        progress(next(finished))
        return played

    return Rescored(list(episodes), await asyncio.gather(*map(again, episodes)))
