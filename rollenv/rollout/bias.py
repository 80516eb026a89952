"""The bias report: what was dispatched against what was trained.

Redundant rollouts, filters and failures choose among episodes. Whoever keeps the first to finish trains more on short
and easy episodes than on long and hard ones: this counts it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Any

from rollenv.rollout.groups import Group
from rollenv.trajectory import StopReason, Trajectory

TURNS = (2, 4, 8, 16, 32)
TOKENS = (64, 256, 1024, 4096, 16384)
DIFFICULTY = (0.25, 0.5, 0.75)


class BiasReport:
    """Counts attempts that ended, however they did, and episodes that were trained.

    Rows are by `env`, by `turns` and `tokens` (of a cancelled episode: those it came to), and by `difficulty`, the
    task's running success before its group began to end.
    """

    def __init__(self) -> None:
        self._dispatched: dict[str, int] = {}
        self._trained: dict[str, int] = {}
        self._tasks: dict[str, list[int]] = {}
        self._levels: dict[int, str] = {}

    def ended(self, trajectory: Trajectory) -> None:
        """An attempt has ended, well or not."""
        for key in self._keys(trajectory):
            self._dispatched[key] = self._dispatched.get(key, 0) + 1
        if trajectory.stop not in (StopReason.FAILED, StopReason.ABORTED):
            successes, n = self._tasks.get(_task(trajectory), (0, 0))
            self._tasks[_task(trajectory)] = [successes + bool(trajectory.success), n + 1]

    def trained(self, group: Group) -> None:
        """A group was trained."""
        for trajectory in group.trainable:
            for key in self._keys(trajectory):
                self._trained[key] = self._trained.get(key, 0) + 1
        self.passed(group)

    def passed(self, group: Group) -> None:
        """Nothing more will be heard of a group."""
        self._levels.pop(group.request.index, None)

    def rows(self) -> list[dict[str, Any]]:
        """Per dimension and bin: attempts dispatched, episodes trained, and their share."""
        rows = []
        for key in sorted(self._dispatched, key=_place):
            dimension, _, name = key.partition(" ")
            dispatched, trained = self._dispatched[key], self._trained.get(key, 0)
            row = {"by": dimension, "bin": name, "dispatched": dispatched, "trained": trained}
            rows.append(row | {"share": trained / dispatched})
        return rows

    def _keys(self, trajectory: Trajectory) -> Iterator[str]:
        yield f"env {trajectory.env}"
        yield f"turns {_bin(len(trajectory.turns), TURNS)}"
        yield f"tokens {_bin(trajectory.n_completion_tokens, TOKENS)}"
        yield f"difficulty {self._level(trajectory)}"

    def _level(self, trajectory: Trajectory) -> str:
        """The task's difficulty when its group was first heard of: trained and dispatched episodes must agree on it."""
        if trajectory.group not in self._levels:
            successes, n = self._tasks.get(_task(trajectory), (0, 0))
            self._levels[trajectory.group] = f"success {_bin(successes / n, DIFFICULTY)}" if n else "new"
        return self._levels[trajectory.group]

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable; `load_state_dict` reads it back."""
        levels = [[group, level] for group, level in self._levels.items()]
        return {
            "dispatched": dict(self._dispatched),
            "trained": dict(self._trained),
            "tasks": dict(self._tasks),
            "levels": levels,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict`."""
        self._dispatched, self._trained = dict(state["dispatched"]), dict(state["trained"])
        self._tasks, self._levels = dict(state["tasks"]), dict(state["levels"])


def _task(trajectory: Trajectory) -> str:
    return f"{trajectory.env} {trajectory.task}"


def _bin(value: float, edges: tuple[float, ...]) -> str:
    place = bisect.bisect_left(edges, value)
    if place == len(edges):
        return f"> {edges[-1]}"
    return f"<= {edges[place]}"


def _place(key: str) -> tuple[str, bool, float, str]:
    dimension, _, name = key.partition(" ")
    number = name.split()[-1]
    known = number.replace(".", "", 1).isdigit()
    return dimension, known, float(number) + name.count(">") / 2 if known else 0.0, name
