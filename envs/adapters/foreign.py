"""What environments of other libraries have in common here: tasks, refusals, snapshots and copies.

Invariant: an episode is decided by its task, the seed of its chance and the actions that were taken. A snapshot holds
these and nothing executable, so that it may come from anywhere; restoring it takes the actions again.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rollenv.core import EpisodeOver, TextEnv
from rollenv.errors import RollenvError, SnapshotError
from rollenv.registration import load_attribute
from rollenv.tasks import TaskSet, canonical_json

_MAGIC = b"rollenv-foreign\x01"

TEST_SEEDS = range(200)
TRAIN_SEEDS = range(1000, 2000)
"""Seeds of the tasks of an environment that has no tasks of its own."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a foreign environment answered.

    Attributes:
        valid: False when the action was not understood; then it was not taken, and nothing else has changed.
        success: whether the task is solved; asked when the episode is over.
        actions: every action that is possible now; None when they cannot be listed.
        info: further keys of `info`, plain data.
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    valid: bool = True
    success: bool = False
    actions: list[str] | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated


class ForeignEnv(TextEnv):
    """Base of the adapters: a subclass says how an episode begins (`_begin`) and goes on (`_act`).

    Args:
        identity: what decides its episodes besides task and seed (ids, arguments, versions), as plain data. It is part
            of the tasks' hash, and a snapshot is refused where it differs.
    """

    library: ClassVar[str] = ""
    """Its name in messages."""

    def __init__(self, identity: Mapping[str, Any]) -> None:
        self._identity = dict(identity)
        self._task: str | None = None
        self._chance = 0
        self._past: list[tuple[str, Any]] = []  # ("act", text) or ("reseed", seed), in order
        self._seen: Seen | None = None
        self._tasks: TaskSet | None = None

    @property
    def tasks(self) -> TaskSet:
        if self._tasks is None:
            self._tasks = self._make_tasks()
        return self._tasks

    def _make_tasks(self) -> TaskSet:
        """A task is a seed of the environment's own, unless a subclass knows better."""
        splits = {"train": TRAIN_SEEDS, "test": TEST_SEEDS}
        named = {split: [f"seed-{seed}" for seed in seeds] for split, seeds in splits.items()}
        return TaskSet(self.library, named, seed_of_task, self._identity)

    @abstractmethod
    def _begin(self, task: str, chance: int) -> Seen:
        """Begins the task. `chance`, in [0, 2**63), seeds what the task leaves open."""

    @abstractmethod
    def _act(self, action: str) -> Seen:
        """Takes an action; one that is not understood is answered with `valid=False` and changes nothing."""

    def _reseed(self, seed: int) -> None:
        """Draws what is still to be drawn from `seed`, where the environment lets one do so."""

    # -- episodes ------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begins an episode: the task `options["task"]`, or one that is drawn from the first split.

        Raises:
            RollenvError: there is no such task or option.
        """
        super().reset(seed=seed)
        options = self.check_options(options)
        unknown = [key for key in options if key != "task"]
        if unknown:
            raise RollenvError(f"{self.library}: reset takes the option 'task', not '{unknown[0]}'")
        if "task" in options:
            self.tasks.split_of(options["task"])
            task = str(options["task"])
        else:
            ids = next(iter(self.tasks.splits.values()))
            task = ids[int(self.np_random.integers(len(ids)))]
        self._start(task, int(self.np_random.integers(2**63)))
        return self._view()

    def _start(self, task: str, chance: int) -> None:
        self._seen = None  # a reset that fails leaves no episode behind
        self._task, self._chance, self._past = task, chance, []
        self._seen = self._begin(task, chance)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Takes an action.

        Raises:
            InvalidAction: it is not text.
            EpisodeOver: there is no episode going on.
        """
        action = self.check_text(action)
        if self._seen is None or self._seen.over:
            raise EpisodeOver(f"{self.library}: the episode is over or has not begun; call reset() first")
        seen = self._take(action)
        observation, info = self._view()
        info["valid_action"] = seen.valid
        if seen.over:
            info["success"] = seen.success
        return observation, seen.reward, seen.terminated, seen.truncated, info

    def _take(self, action: str) -> Seen:
        seen = self._act(action)
        if seen.valid:
            self._past.append(("act", action))
            self._seen = seen
        return seen

    def _view(self) -> tuple[str, dict[str, Any]]:
        assert self._seen is not None
        info: dict[str, Any] = {"task": self._task}
        if self._seen.actions is not None:
            info["admissible_actions"] = [] if self._seen.over else list(self._seen.actions)
        return self._seen.observation, info | plain(self._seen.info)

    # -- snapshots and copies ------------------------------------------------------------------------------

    def reseed(self, seed: int) -> None:
        super().reseed(seed)
        if self._seen is not None:
            self._past.append(("reseed", seed))
            self._reseed(seed)

    def snapshot(self) -> bytes:
        """The episode's task, chance and actions, and the generator's state."""
        state = {
            "identity": self._identity_hash(),
            "begun": self._seen is not None,
            "episode": [self._task, self._chance, self._past],
            "observation": self._seen.observation if self._seen is not None else "",
            "generator": self.np_random.bit_generator.state,
        }
        body = json.dumps(state).encode()
        return _MAGIC + hashlib.sha256(body).digest()[:8] + body

    def restore(self, snapshot: bytes) -> tuple[str, dict[str, Any]]:
        """Takes the actions of `snapshot` again; returns the observation and the info that it ends with.

        Raises:
            SnapshotError: the bytes are no snapshot of this environment, or it went another way this time.
        """
        state = self._unsealed(snapshot)
        if state["identity"] != self._identity_hash():
            raise SnapshotError(f"{self.library}: the snapshot is of another environment than {self._identity}")
        self._seen = None
        if state["begun"]:
            task, chance, past = state["episode"]
            self._replay(task, chance, past, state["observation"])
        self.np_random.bit_generator.state = state["generator"]
        return self._view() if self._seen is not None else ("", {})

    def _identity_hash(self) -> str:
        return hashlib.sha256(canonical_json(self._identity)).hexdigest()

    def _unsealed(self, snapshot: bytes) -> dict[str, Any]:
        size = len(_MAGIC) + 8
        if not isinstance(snapshot, bytes) or not snapshot.startswith(_MAGIC):
            raise SnapshotError(f"{self.library}: these bytes are not a snapshot of an adapted environment")
        body = snapshot[size:]
        if hashlib.sha256(body).digest()[:8] != snapshot[len(_MAGIC) : size]:
            raise SnapshotError(f"{self.library}: the snapshot is damaged; take a new one")
        state: dict[str, Any] = json.loads(body)
        return state

    def _replay(self, task: str, chance: int, past: list[Any], observation: str) -> None:
        self._start(task, chance)
        for kind, what in past:
            if kind == "reseed":
                self._past.append(("reseed", what))
                self._reseed(what)
            else:
                self._take(what)
        if self._seen is None or self._seen.observation != observation:
            raise SnapshotError(
                f"{self.library}: the same actions led elsewhere: {self._identity} has chance that no seed decides"
            )

    def __getstate__(self) -> dict[str, Any]:
        # The foreign environment stays where it is: a copy makes its own, and takes the same actions there.
        return {key: value for key, value in self.__dict__.items() if key not in ("_inner", "_seen", "_thread")} | {
            "_tasks": None,
            "_ends": None if self._seen is None else self._seen.observation,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        ends = state.pop("_ends")
        self.__dict__.update(state)
        self._seen = None
        self._open()
        if ends is not None:
            assert self._task is not None
            self._replay(self._task, self._chance, self._past, ends)

    def _open(self) -> None:
        """Makes the foreign environment anew, in a copy."""


def seed_of_task(task: str) -> dict[str, int]:
    """`"seed-7"` -> `{"seed": 7}`."""
    return {"seed": int(task.removeprefix("seed-"))}


def called(what: str, path: str) -> Callable[..., Any]:
    """The function at `"module:function"`.

    Raises:
        RollenvError: there is none; `what` says on whose behalf it was asked for.
    """
    found = load_attribute(path, what)
    if not callable(found):
        raise RollenvError(f"{what}: '{path}' is a {type(found).__name__}; give module:function")
    return found  # type: ignore[no-any-return]


def checked_range(library: str, given: Sequence[float] | None) -> tuple[float, float]:
    """The argument `reward_range` as `TextEnv` has it; without it there is no bound. Raises RollenvError otherwise."""
    if given is None:
        return (-math.inf, math.inf)
    if len(given) != 2 or not given[0] <= given[1]:
        raise RollenvError(f"{library}: reward_range must be [lowest, highest], not {list(given)}")
    return (float(given[0]), float(given[1]))


_NOTHING = object()


def plain(value: Any) -> Any:
    """`value` as JSON has it: NumPy's numbers and arrays become plain ones, what has no such form is left out.

    >>> plain({"a": (1, 2), "b": object()})
    {'a': [1, 2]}
    """
    found = _plain(value)
    return None if found is _NOTHING else found


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        items = ((str(key), _plain(item)) for key, item in value.items())
        return {key: item for key, item in items if item is not _NOTHING}
    if isinstance(value, list | tuple):
        return [item for item in map(_plain, value) if item is not _NOTHING]
    return _NOTHING
