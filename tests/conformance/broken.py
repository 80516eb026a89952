"""Environments that break the contract, each in one way: every class differs from `Corridor` by its one fault.

What they leave behind is kept in `LEFT`, so that a test can clean up.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from conformance.toy import ROOMS, Corridor, content

from rollenv import RollenvError, SnapshotError, TaskSet, TextSpace

LEFT: list[Callable[[], object]] = []
_counter = itertools.count()

Answer = tuple[str, float, bool, bool, dict[str, Any]]


class Unseeded(Corridor):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        # of so many that no two resets agree by chance, as two rooms of four may
        self.seen = f"{observation} Chalk on the wall says {np.random.default_rng().integers(2**63)}."
        return self.seen, info


class UsesGlobalRandom(Corridor):
    def start_room(self) -> int:
        return random.randrange(ROOMS)


class SeedsGlobalNumpy(Corridor):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        np.random.seed(seed)
        return super().reset(seed=seed, options=options)


class ReadsGlobalRandom(Corridor):
    def start_room(self) -> int:
        return int(random.getstate()[1][1] % ROOMS)


class LiesAboutActions(Corridor):
    def info(self, **extra: Any) -> dict[str, Any]:
        return super().info(**extra) | {"admissible_actions": ["go left", "go right"]}


class LeavesThread(Corridor):
    def __init__(self) -> None:
        super().__init__()
        stop = threading.Event()
        LEFT.append(stop.set)
        threading.Thread(target=stop.wait, name="forgotten", daemon=True).start()


class LeavesFile(Corridor):
    def start_room(self) -> int:
        descriptor = os.open(os.devnull, os.O_RDONLY)
        LEFT.append(lambda: os.close(descriptor))
        return super().start_room()


class LeavesChild(Corridor):
    def __init__(self) -> None:
        super().__init__()
        child = subprocess.Popen(["sleep", "600"])
        LEFT.append(lambda: (child.kill(), child.wait()))


class RewardOutOfRange(Corridor):
    def step(self, action: str) -> Answer:
        observation, reward, *rest = super().step(action)
        return observation, reward + 0.5 if action == "open chest" and reward else reward - 0.5, *rest


class RewardIsNumpy(Corridor):
    def step(self, action: str) -> Answer:
        observation, reward, *rest = super().step(action)
        return observation, np.float64(reward), *rest


class DoneIsInteger(Corridor):
    def step(self, action: str) -> Answer:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, int(terminated), truncated, info


class ForgetsRoomInSnapshot(Corridor):
    def state(self) -> dict[str, Any]:
        return super().state() | {"room": 0}


class ForgetsGeneratorInSnapshot(Corridor):
    def state(self) -> dict[str, Any]:
        return super().state() | {"generator": None}


class SnapshotDisturbs(Corridor):
    def snapshot(self) -> bytes:
        self.np_random.random()
        return super().snapshot()


class RestoresGarbage(Corridor):
    def restore(self, snapshot: bytes) -> tuple[str, dict[str, Any]]:
        try:
            return super().restore(snapshot)
        except SnapshotError:
            return self.seen, self.info()


class NoSuccess(Corridor):
    def info(self, **extra: Any) -> dict[str, Any]:
        extra.pop("success", None)
        return super().info(**extra)


class SuccessTooEarly(Corridor):
    def info(self, **extra: Any) -> dict[str, Any]:
        return super().info(**extra) | {"success": False}


class NoValidAction(Corridor):
    def info(self, **extra: Any) -> dict[str, Any]:
        extra.pop("valid_action", None)
        return super().info(**extra)


class AcceptsNonsense(Corridor):
    def step(self, action: str) -> Answer:
        *rest, info = super().step(action)
        return *rest, info | {"valid_action": True}


class NonsenseMoves(Corridor):
    def step(self, action: str) -> Answer:
        answer = super().step(action)
        if not answer[-1]["valid_action"]:
            self.np_random.random()
        return answer


class NonTextIsTaken(Corridor):
    @staticmethod
    def check_text(action: Any) -> str:
        return str(action)


class StateSurvivesReset(Corridor):
    def start_room(self) -> int:
        return self.room


class DependsOnSetOrder(Corridor):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        words = {f"word-{i}" for i in range(50)}
        return f"{observation} A sign says {' '.join(words)}.", info

    def snapshot(self) -> bytes:
        raise SnapshotError("no snapshots here")


class CannotBePickled(Corridor):
    def __init__(self) -> None:
        super().__init__()
        self.content = lambda task: task


class ForgetsWhenPickled(Corridor):
    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"steps": 0, "room": 0}


class AsyncDiffers(Corridor):
    async def astep(self, action: str) -> Answer:
        observation, *rest = await super().astep(action)
        return f"{observation} (asynchronously)", *rest


class ReusesInfo(Corridor):
    def info(self, **extra: Any) -> dict[str, Any]:
        self.kept = getattr(self, "kept", {})
        self.kept.pop("success", None)
        self.kept.update(super().info(**extra))
        return self.kept


class StepsBeforeReset(Corridor):
    def __init__(self) -> None:
        super().__init__()
        self.task = "chest-0"


class StepsAfterTheEnd(Corridor):
    def step(self, action: str) -> Answer:
        self.over = False
        return super().step(action)


class AnyTaskWillDo(Corridor):
    def choose_task(self, options: dict[str, Any] | None) -> str:
        known = isinstance(options, dict) and options.get("task") in ("chest-0", "chest-1", "chest-2", "chest-3")
        return super().choose_task(options if known else None)


class IgnoresTask(Corridor):
    def choose_task(self, options: dict[str, Any] | None) -> str:
        super().choose_task(options)
        return super().choose_task(None)


class HashChanges(Corridor):
    def __init__(self) -> None:
        super().__init__()
        self._tasks = TaskSet("corridor", self._tasks.splits, counted_content)


def counted_content(task_id: str) -> dict[str, Any]:
    return content(task_id) | {"asked": next(_counter)}


class CloseTwiceFails(Corridor):
    def close(self) -> None:
        self.closed = getattr(self, "closed", 0) + 1
        if self.closed > 1:
            raise OSError("already closed")
        super().close()


class Crashes(Corridor):
    def step(self, action: str) -> Answer:
        if action == "listen":
            raise KeyError("ears")
        return super().step(action)


class ObservationIsBytes(Corridor):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return observation.encode(), info


class UnknownTaskInInfo(Corridor):
    def info(self, **extra: Any) -> dict[str, Any]:
        return super().info(**extra) | {"task": "chest-99"}


class RewardRangeIsWrong(Corridor):
    reward_range = (1.0, 0.0)


class ExecutorIsUnknown(Corridor):
    executor = "process"  # type: ignore[assignment]


class SpaceIsNone(Corridor):
    action_space = None  # type: ignore[assignment]


class ObservationTooLong(Corridor):
    observation_space = TextSpace(max_length=40)


class ActionsAreATuple(Corridor):
    def info(self, **extra: Any) -> dict[str, Any]:
        return super().info(**extra) | {"admissible_actions": tuple(self.possible())}


class ActionsOutsideTheirSpace(Corridor):
    action_space = TextSpace(max_length=8)


class TaskChangesMeanwhile(Corridor):
    def step(self, action: str) -> Answer:
        self.task = "chest-0" if self.task == "chest-1" else "chest-1"
        return super().step(action)


class SnapshotIsText(Corridor):
    def snapshot(self) -> bytes:
        return super().snapshot().decode()  # type: ignore[return-value]


class RestoreShowsAnotherView(Corridor):
    def restore(self, snapshot: bytes) -> tuple[str, dict[str, Any]]:
        _, info = super().restore(snapshot)
        return "Welcome back!", info


class RestoreIsNotChecked(Corridor):
    def restore(self, snapshot: bytes) -> tuple[str, dict[str, Any]]:
        self.room = 0
        return super().restore(snapshot)


class CreationUsesGlobalRandom(Corridor):
    def __init__(self) -> None:
        super().__init__()
        self.colour = random.random()


class OtherTasksEachTime(Corridor):
    def __init__(self) -> None:
        super().__init__()
        ids = [*self._tasks.ids("train"), *self._tasks.ids("test")]
        self._tasks = TaskSet("corridor", {"train": ids if next(_counter) % 2 else ids[::-1]}, content)

    def choose_task(self, options: dict[str, Any] | None) -> str:
        super().choose_task(options)
        return options["task"] if options else f"chest-{self.np_random.integers(ROOMS)}"


class SplitsOverlap(Corridor):
    def __init__(self) -> None:
        super().__init__()
        self._tasks.splits["more"] = ("chest-0",)


class UnknownTaskIsAKeyError(Corridor):
    def choose_task(self, options: dict[str, Any] | None) -> str:
        if isinstance(options, dict) and options.get("task") not in self.tasks:
            raise KeyError(options["task"])
        return super().choose_task(options)


class CloseFails(Corridor):
    def close(self) -> None:
        raise OSError("no such handle")


class RefusalDoesNotSayWhy(Corridor):
    def step(self, action: str) -> Answer:
        try:
            return super().step(action)
        except RollenvError:
            raise RollenvError("not now") from None
