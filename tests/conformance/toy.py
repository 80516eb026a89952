"""A small environment that keeps the whole contract: a corridor of rooms, with a treasure in one of them."""

from __future__ import annotations

import json
from typing import Any

from rollenv import RollenvError, SnapshotError, TaskSet, TextEnv

SOUNDS = ("dripping water", "a distant door", "nothing at all", "footsteps", "a cat", "the wind")
ROOMS = 4
LIMIT = 12


class Corridor(TextEnv):
    """Walk, listen (what is heard is drawn anew each time), and open the chest of the right room."""

    def __init__(self) -> None:
        ids = [f"chest-{room}" for room in range(ROOMS)]
        self._tasks = TaskSet("corridor", {"train": ids[:-1], "test": ids[-1:]}, content)
        self.task: str | None = None
        self.room = self.steps = 0
        self.over = False
        self.seen = ""

    @property
    def tasks(self) -> TaskSet:
        return self._tasks

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.task = self.choose_task(options)
        self.steps, self.over = 0, False
        self.room = self.start_room()
        self.seen = f"You are in a corridor. Find the treasure of {self.task}. This is room {self.room}."
        return self.seen, self.info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.check_text(action)
        if self.task is None:
            raise RollenvError("call reset() before the first step()")
        if self.over:
            raise RollenvError("the episode is over: call reset() before the next step()")
        if action not in self.possible():
            return self.seen, 0.0, False, False, self.info(valid_action=False)
        self.steps += 1
        reward, terminated = 0.0, False
        if action == "listen":
            self.seen = f"You hear {SOUNDS[self.np_random.integers(len(SOUNDS))]}."
        elif action == "open chest":
            terminated = True
            reward = float(self.task == f"chest-{self.room}")
            self.seen = "Gold!" if reward else "It is empty."
        else:
            self.room += 1 if action == "go right" else -1
            self.seen = f"This is room {self.room}."
        truncated = self.steps >= LIMIT and not terminated
        self.over = terminated or truncated
        ended = {"success": reward == 1.0} if self.over else {}
        return self.seen, reward, terminated, truncated, self.info(valid_action=True, **ended)

    def snapshot(self) -> bytes:
        return json.dumps(self.state()).encode()

    def restore(self, snapshot: bytes) -> tuple[str, dict[str, Any]]:
        try:
            state = json.loads(snapshot)
            task, room, steps, over, seen = (state[key] for key in ("task", "room", "steps", "over", "seen"))
            generator = state["generator"]
        except (ValueError, KeyError, TypeError) as error:
            raise SnapshotError(f"no snapshot of a corridor: {error}") from error
        self.task, self.room, self.steps, self.over, self.seen = task, room, steps, over, seen
        if generator is not None:
            self.np_random.bit_generator.state = generator
        return self.seen, self.info()

    # -- what the broken ones change -----------------------------------------------------------------------

    def choose_task(self, options: dict[str, Any] | None) -> str:
        task = self.check_options(options).get("task")
        if task is None:
            ids = [task for split in self.tasks.splits.values() for task in split]
            return ids[self.np_random.integers(len(ids))]
        self.tasks.split_of(task)
        return str(task)

    def start_room(self) -> int:
        return int(self.np_random.integers(ROOMS))

    def possible(self) -> list[str]:
        left, right = ["go left"] if self.room > 0 else [], ["go right"] if self.room < ROOMS - 1 else []
        return [*left, *right, "listen", "open chest"]

    def info(self, **extra: Any) -> dict[str, Any]:
        return {"task": self.task, "admissible_actions": [] if self.over else self.possible(), **extra}

    def state(self) -> dict[str, Any]:
        names = ("task", "room", "steps", "over", "seen")
        return {name: getattr(self, name) for name in names} | {"generator": self.np_random.bit_generator.state}


def content(task_id: str) -> dict[str, str]:
    """A task's data (a function of the module, so that environments can be pickled)."""
    return {"treasure in": task_id}
