"""A small Markov decision process whose values are known, to check estimates of them."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Sequence
from typing import Any

from rollout.fakes import END

from rollenv.core import TextEnv
from rollenv.errors import SnapshotError
from rollenv.inference import SamplingParams
from rollenv.tasks import TaskSet

LAST, START, MAX_TURNS = 4, 2, 6
RIGHT, SLIP, COST = 0.6, 0.2, 0.05
"""Probability that the policy says `r`; that a step goes the other way; what a step costs."""


class Walk(TextEnv):
    """A walk from 2 to either end of 0..4, worth 0.3 at 0 and 1 at 4; steps go the wrong way now and then."""

    executor = "inline"

    @property
    def tasks(self) -> TaskSet:
        return TaskSet("walk", {"train": [f"w{i}" for i in range(50)]}, str)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.task, self.at = str((options or {})["task"]), START
        return self._see()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.at += (1 if action == "r" else -1) * (-1 if self.np_random.random() < SLIP else 1)
        reward = {0: 0.3, LAST: 1.0}.get(self.at, 0.0) - COST
        over = self.at in (0, LAST)
        observation, info = self._see()
        return observation, reward, over, False, info | ({"success": self.at == LAST} if over else {})

    def _see(self) -> tuple[str, dict[str, Any]]:
        return f"at {self.at}", {"task": self.task}

    def snapshot(self) -> bytes:
        return json.dumps([self.task, self.at, self.np_random.bit_generator.state]).encode()

    def restore(self, snapshot: bytes) -> tuple[str, dict[str, Any]]:
        try:
            self.task, self.at, self.np_random.bit_generator.state = json.loads(snapshot)
        except ValueError as error:
            raise SnapshotError("not a snapshot of Walk") from error
        return self._see()


@functools.cache
def value(at: int, turns_left: int) -> float:
    """The expected sum of rewards from here on."""
    if at in (0, LAST) or turns_left == 0:
        return 0.0
    up = RIGHT * (1 - SLIP) + (1 - RIGHT) * SLIP
    ends = {0: 0.3, LAST: 1.0}
    return sum(p * (ends.get(to, 0.0) - COST + value(to, turns_left - 1)) for to, p in ((at + 1, up), (at - 1, 1 - up)))


def wanders(prompt: Sequence[int], sampling: SamplingParams) -> list[int]:
    """A script for an engine: the policy that says `r` with probability RIGHT."""
    return [ord("r" if random.Random(sampling.seed).random() < RIGHT else "l"), END]
