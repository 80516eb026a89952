"""Small stand-ins for rollout tests: letters as tokens, an environment that breaks on command."""

from __future__ import annotations

import asyncio
import math
import random
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from rollenv.agents.llm import LLMAgent
from rollenv.core import TextEnv
from rollenv.inference import Completion, SamplingParams, ScriptedEngine
from rollenv.rollout.env_pool import EnvPool
from rollenv.rollout.episode import EpisodeLimits, EpisodeRequest
from rollenv.rollout.play import ModelPlay
from rollenv.tasks import TaskSet
from rollenv.trajectory import Failure, StopReason, Trajectory, Turn

T = TypeVar("T")
END = 0


class Letters:
    """A chat format whose tokens are letters; 0 ends a turn."""

    end_of_turn_id = END

    def opening(self, system: str | None) -> list[int]:
        return self.encode(system or "")

    def user_block(self, content: str) -> list[int]:
        return self.encode(f"<{content}>")

    def separator(self) -> list[int]:
        return self.encode("|")

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i != END)


class Fragile(TextEnv):
    """Three steps that are worth 0.25 each, unless `fault(task, try)` names what goes wrong this time.

    Tries are counted over all copies; a hang ends when `freed` is set.
    """

    FAULTS = (
        "reset crash",
        "reset hang",
        "reset tuple",
        "reset number",
        "step crash",
        "step hang",
        "step exit",
        "step own timeout",
        "nan",
        "inf",
        "huge",
        "no number",
        "bytes",
        "short",
        "no info",
        "vector",
    )

    def __init__(self, fault: Callable[[str, int], str], tries: Counter[str], freed: threading.Event) -> None:
        self._fault, self._tries, self._freed = fault, tries, freed
        self.closed = False

    @property
    def tasks(self) -> TaskSet:
        return TaskSet("fragile", {"train": [f"t{i}" for i in range(100)]}, str)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._task = str((options or {})["task"])
        self._now, self._at = self._fault(self._task, self._tries[self._task]), 0
        self._tries[self._task] += 1
        if self._now == "reset crash":
            raise KeyError("broken at reset")
        if self._now == "reset hang":
            self._freed.wait(60)
        if self._now == "reset tuple":
            return ("only one",)  # type: ignore[return-value]
        if self._now == "reset number":
            return 5, {}  # type: ignore[return-value]
        return f"{self._task}:0", {"task": self._task}

    def step(self, action: str) -> Any:
        self._at += 1
        observation, end, info = f"{self._task}:{self._at}", self._at == 3, {"task": self._task}
        if end:
            info["success"] = True
        if self._at == 2:
            match self._now:
                case "step crash":
                    raise RuntimeError("broken at step")
                case "step hang":
                    self._freed.wait(60)
                case "step exit":
                    sys.exit(3)
                case "step own timeout":
                    raise TimeoutError("a socket's")
                case "nan":
                    return observation, math.nan, end, False, info
                case "inf":
                    return observation, math.inf, end, False, info
                case "huge":
                    return observation, 10**400, end, False, info
                case "no number":
                    return observation, "1.0", end, False, info
                case "bytes":
                    return b"bytes", 0.0, end, False, info
                case "short":
                    return observation, 0.0, end
                case "no info":
                    return observation, 0.0, end, False, None
                case "vector":
                    return observation, 0.0, np.zeros(2), False, info
        return observation, 0.25, end, False, info

    def close(self) -> None:
        self.closed = True
        super().close()


class Recorder(ScriptedEngine):
    """A scripted engine that remembers what it was asked."""

    def __init__(self, script: Any = None, **options: Any) -> None:
        super().__init__(script or says("ok"), **options)
        self.prompts: list[tuple[str, list[int]]] = []
        self.samplings: list[SamplingParams] = []
        self.aborted: list[str] = []
        self.released: list[str] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: str) -> Completion:
        self.prompts.append((session, list(prompt_ids)))
        self.samplings.append(sampling)
        return await super().generate(prompt_ids, sampling, session=session)

    async def abort(self, session: str) -> None:
        self.aborted.append(session)
        await super().abort(session)

    async def release(self, session: str) -> None:
        self.released.append(session)
        await super().abort(session)


def says(text: str) -> Callable[[Sequence[int], SamplingParams], list[int]]:
    """A script that always says the same."""
    return lambda prompt, sampling: [*(ord(letter) for letter in text), END]


def babbles(prompt: Sequence[int], sampling: SamplingParams) -> list[int]:
    """A script that says one to four letters which the sampling's seed decides."""
    draw = random.Random(sampling.seed)
    return [ord(draw.choice("abcd")) for _ in range(draw.randint(1, 4))] + [END]


def model_play(env: Callable[[], TextEnv], engine: Any = None, agent: Any = None, **limits: Any) -> ModelPlay:
    return ModelPlay(
        EnvPool(env),
        "fragile",
        agent or LLMAgent(system="", list_actions=False),
        engine or Recorder(),
        Letters(),  # type: ignore[arg-type]
        SamplingParams(max_tokens=16, stop_token_ids=(END,)),
        EpisodeLimits(**limits),
    )


def ended(request: EpisodeRequest, reward: float = 1.0, tokens: int = 3, version: int = 0) -> Trajectory:
    """A trajectory of one turn that ended well."""
    turn = Turn("", [1], [2] * tokens, [-0.5] * tokens, [version] * tokens, reward=reward)
    return of(request, StopReason.TERMINATED, [turn])


def failed(request: EpisodeRequest) -> Trajectory:
    trajectory = of(request, StopReason.FAILED, [])
    trajectory.failure = Failure("env", "crash", "broken")
    return trajectory


def of(request: EpisodeRequest, stop: StopReason, turns: list[Turn]) -> Trajectory:
    return Trajectory(
        "fake", request.task, request.seed, request.group, request.sample, request.attempt, turns, stop, success=True
    )


def run(work: Awaitable[T]) -> T:
    """Runs a coroutine in a loop of its own; tasks left over are an error."""

    async def main() -> T:
        result = await work
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"left running: {left}"
        return result

    return asyncio.run(main())
