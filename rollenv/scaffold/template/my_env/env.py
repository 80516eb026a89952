"""A courier: fetch a parcel and bring it to its goal, square by square.

Replace this world by your own: `reset` begins an episode, `step` plays an action, and `rollenv.check_env` (in
tests/test_env.py) says what the contract between them is.
"""

import itertools
import json
from typing import Any

from rollenv import RollenvError, SnapshotError, TaskSet, TextEnv

SQUARES = [f"{column}{row}" for column in "abc" for row in "123"]
MOVES = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}

# A task is where the courier, the parcel and the goal are: "a1-c3-b2".
ALL = ["-".join(places) for places in itertools.permutations(SQUARES, 3)]
SPLITS = {"train": [task for i, task in enumerate(ALL) if i % 5], "test": ALL[::5]}


def content(task: str) -> dict[str, str]:
    """What defines a task, from its id: it goes into the hash that every result carries."""
    return dict(zip(("start", "parcel", "goal"), task.split("-"), strict=True))


class MyEnv(TextEnv):
    """One episode is one parcel. Actions: `north`, `east`, `south`, `west`, `take`, `drop`. The reward is 1 for the
    parcel at its goal."""

    executor = "inline"  # a step takes microseconds: no thread is needed
    tasks = TaskSet("my_env", SPLITS, content)

    task: str | None = None
    over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)  # seeds self.np_random, the only source of chance
        task = self.check_options(options).get("task")
        if task is None:
            task = str(self.np_random.choice(self.tasks.ids("train")))
        about = self.tasks.get(task).data  # refuses a task that there is not
        self.task, self.over = task, False
        self.here, self.parcel, self.goal = about["start"], about["parcel"], about["goal"]
        return self.see(), self.info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.check_text(action)
        if self.over:
            raise RollenvError("the episode is over or has not begun: call reset() first")
        if action not in self.possible():  # what is not understood changes nothing
            return self.see(), 0.0, False, False, self.info(valid_action=False)
        if action == "take":
            self.parcel = ""  # it is carried
        elif action == "drop":
            self.parcel = self.here
        else:
            self.here = moved(self.here, action)
        self.over = self.parcel == self.goal
        ended = {"success": True} if self.over else {}
        return self.see(), float(self.over), self.over, False, self.info(valid_action=True, **ended)

    def possible(self) -> list[str]:
        """Every action that is possible now."""
        steps = [name for name in MOVES if moved(self.here, name) in SQUARES]
        return steps + (["drop"] if not self.parcel else ["take"] if self.parcel == self.here else [])

    def see(self) -> str:
        """What the agent reads."""
        if self.parcel:
            return f"The parcel is {bearing(self.here, self.parcel)}."
        return f"You carry the parcel. Its goal is {bearing(self.here, self.goal)}."

    def info(self, **more: Any) -> dict[str, Any]:
        return {"task": self.task, "admissible_actions": [] if self.over else self.possible(), **more}

    # Snapshots are optional: with them, episodes can branch in the middle, and a server can hand one over.

    def snapshot(self) -> bytes:
        kept = ("task", "over", "here", "parcel", "goal")
        state = {key: getattr(self, key) for key in kept} if self.task else {}
        return json.dumps([state, self.np_random.bit_generator.state]).encode()

    def restore(self, snapshot: bytes) -> tuple[str, dict[str, Any]]:
        try:
            state, generator = json.loads(snapshot)
            state = dict(state)
        except (ValueError, TypeError) as error:
            raise SnapshotError(f"not a snapshot of my_env: {error}") from error
        for key, value in state.items():
            setattr(self, key, value)
        self.np_random.bit_generator.state = generator
        return (self.see(), self.info()) if state else ("", {})


def moved(square: str, name: str) -> str:
    """The square one step further; it may lie outside.

    >>> moved("a1", "north")
    'a2'
    """
    right, up = MOVES[name]
    return f"{chr(ord(square[0]) + right)}{chr(ord(square[1]) + up)}"


def bearing(here: str, there: str) -> str:
    """Where a square lies, seen from another.

    >>> bearing("a1", "c3")
    'north and east'
    """
    ways = ["north" if here[1] < there[1] else "south"] if here[1] != there[1] else []
    ways += ["east" if here[0] < there[0] else "west"] if here[0] != there[0] else []
    return " and ".join(ways) or "here"
