"""Where tasks come from: an endless order, a curriculum over it, a mixture of several.

Invariant: the same results reported in the same order give the same tasks; the state is a few numbers, so a checkpoint
holds it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rollenv.errors import RollenvError
from rollenv.seeding import TaskOrder, derive_seed


@dataclass(frozen=True, slots=True)
class Draw:
    """A task to play, of environment `env` (empty where there is only one)."""

    task: str
    env: str = ""


class TaskSource(Protocol):
    """Gives tasks without end."""

    def draw(self) -> Draw:
        """The next task."""
        ...

    def report(self, draw: Draw, successes: int, episodes: int) -> None:
        """How a task went: so many of its episodes succeeded."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state; `load_state_dict` reads it back."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict`."""
        ...


class InOrder:
    """Every task of `order`, one after another."""

    def __init__(self, order: TaskOrder) -> None:
        self._order = order
        self._cursor = 0

    def draw(self) -> Draw:
        """The next task."""
        self._cursor += 1
        return Draw(self._order[self._cursor - 1])

    def report(self, draw: Draw, successes: int, episodes: int) -> None:
        """Changes nothing."""

    def state_dict(self) -> dict[str, Any]:
        """The cursor."""
        return {"cursor": self._cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict`."""
        self._cursor = int(state["cursor"])


class Curriculum:
    """Passes over tasks that are too easy or too hard, for now.

    A task with running success p (of its last visits, older ones fading) is played with probability
    max(`floor`, 4 p (1 - p)), the variance of its outcome relative to the largest possible: groups of tasks that always
    or never succeed carry no signal. Tasks not seen yet are always played. The more one is passed over the longer its
    p is out of date, hence the floor.

    Args:
        order: the order it walks through.
        seed: decides who is passed over.
        floor: the least probability, in (0, 1].
        memory: weight of what is known when a new visit counts 1 - memory, in [0, 1).
    """

    def __init__(self, order: TaskOrder, seed: int, floor: float = 0.2, memory: float = 0.5) -> None:
        if not 0 < floor <= 1 or not 0 <= memory < 1:
            raise ValueError(f"a curriculum needs 0 < floor <= 1 and 0 <= memory < 1, not {floor} and {memory}")
        self._order, self._seed, self._floor, self._memory = order, seed, floor, memory
        self._cursor = 0
        self._success: dict[str, float] = {}

    def chance(self, task: str) -> float:
        """The probability that a task is played when its turn comes."""
        p = self._success.get(task)
        return 1.0 if p is None else max(self._floor, 4 * p * (1 - p))

    def draw(self) -> Draw:
        """The next task that is not passed over."""
        while True:
            place, self._cursor = self._cursor, self._cursor + 1
            task = self._order[place]
            if random.Random(derive_seed(self._seed, "curriculum", place)).random() < self.chance(task):
                return Draw(task)

    def report(self, draw: Draw, successes: int, episodes: int) -> None:
        """Remembers how a task went."""
        if episodes:
            now = successes / episodes
            before = self._success.get(draw.task)
            self._success[draw.task] = now if before is None else self._memory * before + (1 - self._memory) * now

    def state_dict(self) -> dict[str, Any]:
        """Cursor and running success."""
        return {"cursor": self._cursor, "success": dict(self._success)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict`."""
        self._cursor, self._success = int(state["cursor"]), dict(state["success"])


class Mixture:
    """Several environments in fixed shares: whoever is furthest behind its share is drawn from.

    Args:
        sources: by environment.
        weights: by environment, positive; their sum does not matter.

    Raises:
        RollenvError: sources and weights are not of the same environments, or a weight is not positive.
    """

    def __init__(self, sources: Mapping[str, TaskSource], weights: Mapping[str, float]) -> None:
        if set(sources) != set(weights) or not sources:
            raise RollenvError(
                f"a mixture needs one weight per environment: it has environments {sorted(sources)} "
                f"and weights for {sorted(weights)}"
            )
        for env, weight in weights.items():
            if not weight > 0:
                raise RollenvError(f"the weight of '{env}' in the mixture must be positive, not {weight}")
        self._sources, self._weights = dict(sources), dict(weights)
        self._drawn = dict.fromkeys(self._sources, 0)

    def draw(self) -> Draw:
        """A task of the environment whose turn it is (Webster's rule of apportionment)."""
        env = min(self._sources, key=lambda name: ((self._drawn[name] + 0.5) / self._weights[name], name))
        self._drawn[env] += 1
        return Draw(self._sources[env].draw().task, env)

    def report(self, draw: Draw, successes: int, episodes: int) -> None:
        """Tells the environment's own source."""
        self._sources[draw.env].report(Draw(draw.task), successes, episodes)

    def state_dict(self) -> dict[str, Any]:
        """Draws so far and the state of each source."""
        return {"drawn": dict(self._drawn), "sources": {n: s.state_dict() for n, s in self._sources.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict`."""
        self._drawn = {name: int(state["drawn"][name]) for name in self._sources}
        for name, source in self._sources.items():
            source.load_state_dict(state["sources"][name])
