"""Environments for the tests of worker processes, which must be able to import them."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from conformance.toy import Corridor

import rollenv
from rollenv import EnvSpec, TaskSet, TextEnv

FAULTS = ("exit", "segfault", "raise", "sys.exit", "unsendable", "bytes", "sleep", "spin", "native")


class Faulty(TextEnv):
    """Three steps worth 0.25 each; the second one goes wrong as the task's name says (`"exit-3"`, `"good-1"`).

    Args:
        once: a folder that remembers what went wrong already; then it goes well. None: it always goes wrong.
        pids: a folder that gets a file named as the process that hosts it.
        nap: seconds that each step takes.
        helper: whether it has a process of its own.
    """

    def __init__(
        self, once: str | None = None, pids: str | None = None, nap: float = 0.0, helper: bool = False
    ) -> None:
        self._once, self._nap = once, nap
        self._helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) if helper else None
        for pid in (os.getpid(), *([self._helper.pid] if self._helper else [])):
            if pids is not None:
                (Path(pids) / str(pid)).touch()
        self._at, self._task = 0, ""

    @property
    def tasks(self) -> TaskSet:
        return TaskSet("faulty", {"train": [f"{what}-{i}" for what in ("good", *FAULTS) for i in range(20)]}, str)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._task, self._at = str((options or {})["task"]), 0
        if self._task.startswith("reset "):
            time.sleep(600)
        return f"{self._task}:{self.np_random.integers(100)}", {"task": self._task}

    def step(self, action: str) -> Any:
        self._at += 1
        time.sleep(self._nap)
        observation, end = f"{self._task}:{self.np_random.integers(100)}:{action}", self._at == 3
        info: dict[str, Any] = {"task": self._task}
        if end:
            info["success"] = True
        if self._at == 2 and self._goes_wrong():
            match self._task.rpartition("-")[0]:
                case "exit":
                    os._exit(7)
                case "segfault":
                    ctypes.string_at(0)
                case "raise":
                    raise RuntimeError("broken at step")
                case "sys.exit":
                    sys.exit(3)
                case "unsendable":
                    info["lambda"] = lambda: None
                case "bytes":
                    return b"bytes", 0.0, end, False, info
                case "sleep":
                    time.sleep(600)
                case "spin":
                    while True:
                        pass
                case "native":  # never gives the interpreter's lock away
                    deque(itertools.repeat(0), maxlen=0)
        return observation, 0.25, end, False, info

    def _goes_wrong(self) -> bool:
        if self._once is None:
            return True
        try:
            (Path(self._once) / self._task.replace(" ", "_")).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def close(self) -> None:
        if self._task.startswith("close hang"):
            time.sleep(600)
        if self._helper is not None and not self._task.startswith("helper stays"):
            self._helper.kill()
            self._helper.wait()
        super().close()


class Slow(Corridor):
    """A corridor that computes for a few milliseconds at every step."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        until = time.thread_time() + 0.003
        while time.thread_time() < until:
            pass
        return super().step(action)


class Patient(Corridor):
    """A corridor that waits for something at every step."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(0.003)
        return super().step(action)


class Unmakeable(TextEnv):
    """Cannot be made."""

    def __init__(self) -> None:
        raise ConnectionError("no container")


FAULTY = EnvSpec("Faulty-v0", "rollout.worker_envs:Faulty")
CORRIDOR = EnvSpec("Corridor-v0", "conformance.toy:Corridor")


def alive(pid: int) -> bool:
    """Whether the process is there (and no zombie)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def left_of(pids: Path, seconds: float = 20.0) -> list[int]:
    """Those of the processes noted in `pids` that are still there after giving them time to go."""
    deadline = time.monotonic() + seconds
    while True:
        left = [int(path.name) for path in pids.iterdir() if alive(int(path.name))]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def play_until_killed(folder: str, task: str) -> None:
    """The main program of a process that is going to be killed: plays `task` in two workers."""
    import asyncio

    from rollenv.rollout.env_workers import WorkerPool

    spec = rollenv.EnvSpec("Faulty-v0", "rollout.worker_envs:Faulty")
    pool = WorkerPool(spec, {"pids": folder, "helper": True}, Faulty().tasks, 2)

    async def play() -> None:
        envs = [await pool.acquire() for _ in range(4)]
        await asyncio.gather(*(env.areset(seed=1, options={"task": task}) for env in envs))
        await asyncio.gather(*(env.astep("x") for env in envs))
        print("ready", flush=True)
        await asyncio.gather(*(env.astep("x") for env in envs))
        await asyncio.sleep(600)

    asyncio.run(play())
