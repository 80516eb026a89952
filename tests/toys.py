"""A small environment that a tiny model can learn: say the colour that the instruction names."""

from __future__ import annotations

import copy
import functools
import json
import random
from typing import Any

import rollenv
from rollenv.errors import SnapshotError
from rollenv.tasks import TaskSet

COLOURS = ("red", "blue", "green", "black")


class Colours(rollenv.TextEnv):
    """Two turns: first any answer is taken, then the named colour wins 1.0, its neighbour 0.5.

    Args:
        n_tasks: tasks per split.
        say: text in front of the instruction.
    """

    executor = "inline"

    def __init__(self, n_tasks: int = 32, say: str = "say") -> None:
        self.n_tasks, self._say = n_tasks, say
        ids = [f"colour-{i}" for i in range(2 * n_tasks)]
        self._tasks = TaskSet("colours", {"train": ids[:n_tasks], "test": ids[n_tasks:]}, self._content)
        self._state: dict[str, Any] | None = None

    @property
    def tasks(self) -> TaskSet:
        return self._tasks

    @staticmethod
    def _content(task: str) -> dict[str, str]:
        return {"colour": random.Random(task).choice(COLOURS)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        task = self.check_options(options).get("task")
        if task is None:
            train = self._tasks.ids("train")
            task = train[int(self.np_random.integers(len(train)))]
        self._state = {"task": task, "colour": self._tasks.get(task).data["colour"], "turn": 0}
        return self._see(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        action = self.check_text(action)
        state = self._state
        if state is None or state["turn"] == 2:
            raise rollenv.RollenvError("the episode is over or has not begun: call reset() first")
        if action not in COLOURS:
            return self._see(), 0.0, False, False, self._info() | {"valid_action": False}
        state["turn"] += 1
        if state["turn"] < 2:
            return self._see(), 0.0, False, False, self._info() | {"valid_action": True}
        distance = abs(COLOURS.index(action) - COLOURS.index(state["colour"]))
        reward = {0: 1.0, 1: 0.5}.get(distance, 0.0)
        return "done", reward, True, False, self._info() | {"valid_action": True, "success": reward == 1.0}

    def _see(self) -> str:
        assert self._state is not None
        return f"{self._say} {self._state['colour']}" if self._state["turn"] == 0 else "again"

    def _info(self) -> dict[str, Any]:
        assert self._state is not None
        return {"task": self._state["task"], "admissible_actions": list(COLOURS)}

    def snapshot(self) -> bytes:
        return json.dumps(self._state).encode()

    def restore(self, snapshot: bytes) -> tuple[str, dict[str, Any]]:
        try:
            state = json.loads(snapshot)
            self._tasks.get(state["task"])
        except (ValueError, TypeError, KeyError) as error:
            raise SnapshotError("not a snapshot of Colours") from error
        self._state = state
        return self._see(), self._info()


class ColourOracle:
    """Says the colour that was named; with probability `noise` any colour."""

    def __init__(self, noise: float = 0.0) -> None:
        self._noise = noise

    def reset(self, seed: int) -> None:
        self._random, self._colour = random.Random(seed), ""

    def act(self, observation: str, info: dict[str, Any]) -> str:
        if observation != "again":
            self._colour = observation.split()[-1]
        return self._random.choice(COLOURS) if self._random.random() < self._noise else self._colour


def register() -> rollenv.EnvSpec:
    """Registers the environment as `Colours-v0`."""
    return rollenv.register(
        "Colours-v0", Colours, max_turns=4, agents={"oracle": f"{__name__}:ColourOracle"}, description="a toy"
    )


# -- small policies and engines for tests ----------------------------------------------------------------------


@functools.cache
def tokenizer() -> Any:
    """A byte-level tokenizer in which every word of the toy is one token."""
    from rollenv.trainers.scratch import train_tokenizer

    words = [f"say {c}" for c in COLOURS] + [*COLOURS, "again", "done", "No."]
    return train_tokenizer(words * 4, 300)


def policy(seed: int = 0, hidden: int = 32, layers: int = 2, context: int = 256) -> Any:
    """A tiny Llama with random weights."""
    from rollenv.trainers.policy import Policy
    from rollenv.trainers.scratch import ScratchShape, new_model

    words = tokenizer()
    shape = ScratchShape(hidden=hidden, layers=layers, heads=4, kv_heads=2, mlp=2 * hidden, context=context)
    return Policy.of(new_model(shape, words, seed), words)


def demonstrations(chat: Any, n: int, noise: float, seed: int = 0) -> list[Any]:
    """What the oracle did in `n` training episodes, as segments to imitate."""
    import asyncio

    from rollenv.agents.llm import LLMAgent
    from rollenv.rollout.controller import collect
    from rollenv.rollout.env_pool import EnvPool
    from rollenv.rollout.episode import EpisodeLimits
    from rollenv.rollout.groups import GroupRequest
    from rollenv.rollout.play import DemonstrationPlay
    from rollenv.rollout.scheduler import Scheduler
    from rollenv.trainers.imitate import Demonstration

    agent = LLMAgent(system="", list_actions=False)
    play = DemonstrationPlay(EnvPool(Colours), "toy", lambda: ColourOracle(noise), agent, chat, EpisodeLimits(4))

    async def run() -> list[Any]:
        scheduler = Scheduler(play, concurrency=4)
        tasks = Colours().tasks.ids("train")
        groups = await collect(scheduler, [GroupRequest(i, tasks[i % len(tasks)], 1, seed) for i in range(n)])
        return [t for group in groups for t in group.trajectories]

    return [Demonstration.of(s) for t in asyncio.run(run()) for s in t.segments()]


@functools.cache
def _warm() -> Any:
    from rollenv.trainers.imitate import ImitateSettings, imitate

    learner = policy()
    settings = ImitateSettings(epochs=20, lr=1e-2, warmup=3, observation_weight=0.0)
    imitate(learner, demonstrations(learner.chat, 160, noise=0.4), settings)
    return learner


def warm_policy() -> Any:
    """A policy that is right a little more than half of the time, so that groups have signal (a second to make)."""
    from rollenv.trainers.policy import Policy

    return Policy.of(copy.deepcopy(_warm().model), tokenizer())
