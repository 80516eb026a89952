"""A player that holds every answer of an environment against the contract of `TextEnv`.

Invariant: the global generators of `random` and `numpy.random` hold other numbers before every reset, so an
environment that reads them cannot play the same episode twice; one that changes them is caught in the act.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import itertools
import math
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import gymnasium
import numpy as np

from rollenv.conformance.compare import difference
from rollenv.conformance.report import ConformanceError
from rollenv.core import TextEnv
from rollenv.tasks import TaskSet

T = TypeVar("T")

Policy = Callable[[str, dict[str, Any], random.Random], str]
"""How to explore: (observation, info, generator) -> action."""


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One answer of an environment, to `reset` (`action` is None) or to `step(action)`."""

    action: str | None
    observation: str
    info: dict[str, Any]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    def difference(self, other: Event) -> str | None:
        """What differs from `other`, in words; None when nothing does."""
        return (
            difference(self.observation, other.observation, "observation")
            or difference(self.reward, other.reward, "reward")
            or difference(self.terminated, other.terminated, "terminated")
            or difference(self.truncated, other.truncated, "truncated")
            or difference(self.info, other.info, "info")
        )


class Player:
    """Plays one environment, raising `ConformanceError` at the first answer that breaks the contract.

    `events` holds the episode so far, beginning with the answer to `reset`. With `runner`, it plays through
    `areset` and `astep`.
    """

    def __init__(self, env: TextEnv, check: str, *, runner: asyncio.Runner | None = None) -> None:
        self.env = env
        self.check = check
        self.events: list[Event] = []
        self.seed: int | None = None
        self._runner = runner
        self._tasks = task_set(env)
        self._returned: tuple[dict[str, Any], dict[str, Any]] | None = None  # the last info, and a copy of it then

    @property
    def last(self) -> Event:
        return self.events[-1]

    @property
    def admissible(self) -> list[str]:
        """The actions listed now; empty when the environment lists none."""
        return list(self.last.info.get("admissible_actions", ()))

    # -- playing -------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None, task: str | None = None) -> Event:
        """Begins an episode and checks the answer."""
        self.events = []
        self.seed = seed if seed is not None else self.seed
        options = None if task is None else {"task": task}
        shuffle_global_generators()
        answer = self.call("reset", self._sync_or_async("reset", seed=seed, options=options))
        if not (isinstance(answer, tuple) and len(answer) == 2):
            self.fault(f"reset returned {_kind(answer)}, not a pair (observation, info)")
        observation, info = answer
        self._check_observation("reset", observation)
        self._check_info("reset", info)
        if task is not None and info["task"] != task:
            self.fault(
                f"reset(options={{'task': {task!r}}}) plays task {info['task']!r}",
                "Play the task that was asked for.",
            )
        if "success" in info:
            self.fault("reset set info['success']", "Set it in the step that ends the episode, and only there.")
        return self._record(Event(None, observation, info))

    def step(self, action: str) -> Event:
        """Takes a step and checks the answer."""
        self.events.append(Event(action, "", {}))  # faults name this step; replaced by the answer below
        answer = self.call("step", self._sync_or_async("step", action))
        if not (isinstance(answer, tuple) and len(answer) == 5):
            self.fault(
                f"step returned {_kind(answer)}, not (observation, reward, terminated, truncated, info)",
            )
        observation, reward, terminated, truncated, info = answer
        self._check_observation("step", observation)
        self._check_reward(reward)
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if type(value) is not bool:
                self.fault(f"step returned {name} as {_kind(value)}", "Return a Python bool: bool(...).")
        self._check_info("step", info)
        if type(info.get("valid_action")) is not bool:
            self.fault(
                f"after a step info['valid_action'] is {_kind(info.get('valid_action'))}",
                "Set it to True or False in every step: whether the action was understood and possible.",
            )
        done = terminated or truncated
        if done and type(info.get("success")) is not bool:
            self.fault(
                f"the episode ended and info['success'] is {_kind(info.get('success'))}",
                "Set it to True or False in the step that ends the episode.",
            )
        if not done and "success" in info:
            self.fault(
                "info['success'] is set although the episode goes on",
                "Set it in the step that ends the episode, and only there.",
            )
        self.events.pop()
        return self._record(Event(action, observation, info, reward, terminated, truncated))

    def resume(self, seed: int, events: Sequence[Event]) -> None:
        """Takes over an episode that was played up to here elsewhere: its environment is in that state already."""
        self.seed, self.events = seed, list(events)

    def play(self, actions: Sequence[str]) -> list[Event]:
        """Takes these steps, as far as the episode lasts; the events they gave."""
        start = len(self.events)
        for action in actions:
            if self.last.done:
                break
            self.step(action)
        return self.events[start:]

    def explore(self, generator: random.Random, steps: int, policy: Policy | None = None) -> list[str]:
        """Takes up to `steps` steps of `policy` (by default: admissible actions, any text where none is listed)."""
        policy = policy or random_policy(self.env)
        actions: list[str] = []
        while len(actions) < steps and not self.last.done:
            # The policy gets copies, so that it cannot change what the environment holds.
            actions.append(policy(self.last.observation, copy.deepcopy(self.last.info), generator))
            self.step(actions[-1])
        return actions

    def expect(self, events: Sequence[Event], expected: Sequence[Event], why: str, advice: str) -> None:
        """Faults unless `events`, the newest of this player, equal `expected`; `why` begins the message."""
        start = len(self.events) - len(events)
        for index, (event, other) in enumerate(zip(events, expected, strict=False)):
            if found := other.difference(event):
                self.events = self.events[: start + index + 1]
                self.fault(f"{why} gave another answer: {found}", advice)
        if len(events) != len(expected):
            self.fault(f"{why} gave {len(expected)} answers, then {len(events)}", advice)

    # -- judging -------------------------------------------------------------------------------------------

    def call(self, name: str, function: Callable[[], T]) -> T:
        """`function()`, which may neither fail nor touch the global generators."""
        before = global_generators()
        try:
            result = function()
        except Exception as error:
            self.fault(f"{name} raised {type(error).__name__}: {error}", "It must not fail here.", cause=error)
        for module, state in global_generators().items():
            if state != before[module]:
                self.fault(
                    f"{name} used the global generator of {module}",
                    "Draw from `self.np_random` only, which reset(seed=...) seeds: a global generator makes episodes "
                    "depend on everything else in the process.",
                )
        return result

    def fault(self, what: str, advice: str = "", cause: BaseException | None = None) -> NoReturn:
        """Raises the `ConformanceError` for what just happened."""
        task = self.events[0].info.get("task") if self.events else None
        step = len(self.events) - 1 if self.events else None
        action = self.events[-1].action if self.events else None
        raise fault(self.env, self.check, what, advice, task=task, seed=self.seed, step=step, action=action) from cause

    def _sync_or_async(self, name: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        if self._runner is None:
            return lambda: getattr(self.env, name)(*args, **kwargs)
        runner = self._runner
        return lambda: runner.run(getattr(self.env, f"a{name}")(*args, **kwargs))

    def _record(self, event: Event) -> Event:
        if self._returned is not None and (found := difference(self._returned[1], self._returned[0], "info")):
            self.fault(
                f"the info returned before was changed afterwards: {found}",
                "Return a new dict (and new lists in it) from every call: agents keep what they were given.",
            )
        recorded = dataclasses.replace(event, info=self._copied(event.info))
        self._returned = event.info, recorded.info
        self.events.append(recorded)
        return recorded

    def _copied(self, info: dict[str, Any]) -> dict[str, Any]:
        try:
            return copy.deepcopy(info)
        except Exception as error:
            self.fault(f"info cannot be copied: {error}", "Put plain data into info.", cause=error)

    def _check_observation(self, call: str, observation: Any) -> None:
        if not isinstance(observation, str) or isinstance(observation, np.generic):
            self.fault(f"{call} returned the observation as {_kind(observation)}", "Return text: str(...).")
        if not self.env.observation_space.contains(observation):
            self.fault(
                f"{call} returned an observation that is not in observation_space "
                f"{self.env.observation_space}: {observation[:80]!r}",
                "Widen the space or shorten the text.",
            )

    def _check_reward(self, reward: Any) -> None:
        if type(reward) is not float:
            self.fault(f"step returned the reward as {_kind(reward)}", "Return a Python float: float(...).")
        low, high = self.env.reward_range
        if not math.isfinite(reward) or not low <= reward <= high:
            self.fault(
                f"step returned reward {reward}, which is outside reward_range ({low}, {high})",
                "Correct the reward, or declare the true `reward_range`.",
            )

    def _check_info(self, call: str, info: Any) -> None:
        if not isinstance(info, dict) or not all(isinstance(key, str) for key in info):
            self.fault(f"{call} returned info as {_kind(info)}", "Return a dict with str keys.")
        task = info.get("task")
        if not isinstance(task, str):
            self.fault(f"{call} returned info['task'] as {_kind(task)}", "Put the id of the task into every info.")
        if self._tasks is not None and task not in self._tasks:
            self.fault(f"{call} returned info['task'] {task!r}, which is not in env.tasks", "Use the ids of env.tasks.")
        if self.events and task != self.events[0].info["task"]:
            self.fault(f"info['task'] changed to {task!r} during the episode", "An episode plays one task.")
        if "admissible_actions" in info:
            listed = info["admissible_actions"]
            if not isinstance(listed, list) or not all(isinstance(action, str) for action in listed):
                self.fault(
                    f"info['admissible_actions'] is {_kind(listed)}",
                    "It must be a list of str, or missing when the actions cannot be listed.",
                )
            for action in listed:
                if not self.env.action_space.contains(action):
                    self.fault(
                        f"the admissible action {action!r} is not in action_space {self.env.action_space}",
                        "Widen the space or correct the action.",
                    )


def random_policy(env: TextEnv) -> Policy:
    """Random admissible actions; where none is listed, samples of a copy of the action space."""
    space: gymnasium.Space[str] = copy.deepcopy(env.action_space)

    def policy(observation: str, info: dict[str, Any], generator: random.Random) -> str:
        if listed := info.get("admissible_actions"):
            return str(generator.choice(listed))
        space.seed(generator.getrandbits(31))
        return space.sample()

    return policy


def fault(
    env: object,
    check: str,
    what: str,
    advice: str = "",
    *,
    task: str | None = None,
    seed: int | None = None,
    step: int | None = None,
    action: str | None = None,
) -> ConformanceError:
    """The error that says what is wrong, where it happened and what to do."""
    where = [f"check '{check}'"]
    where += [f"task {task!r}"] if task is not None else []
    where += [f"seed {seed}"] if seed is not None else []
    where += [f"step {step}" + (f", action {action!r:.80}" if action is not None else "")] if step is not None else []
    name = env if isinstance(env, str) else type(env).__name__
    error = ConformanceError(f"{name}: {what} ({'; '.join(where)}). {advice}".rstrip())
    error.check, error.task, error.seed, error.step = check, task, seed, step
    return error


def task_set(env: TextEnv) -> TaskSet | None:
    """The environment's task set; None when it says that it has none."""
    try:
        return env.tasks
    except AttributeError as error:
        if "no task set" in str(error):
            return None
        raise


# -- the global generators ---------------------------------------------------------------------------------

_numbers = itertools.count(1)


def global_generators() -> dict[str, bytes]:
    """The states of the process-wide generators, to compare."""
    return {
        "random": pickle.dumps(random.getstate()),
        "numpy.random": pickle.dumps(np.random.get_state(legacy=False)),
    }


def shuffle_global_generators() -> None:
    """Gives the process-wide generators states they never had here."""
    number = next(_numbers)
    random.seed(number)
    np.random.seed(number)


@contextmanager
def kept_global_generators() -> Iterator[None]:
    """Puts the process-wide generators back to where they were."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _kind(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r:.60}"
