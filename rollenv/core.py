"""TextEnv: a Gymnasium environment whose observations and actions are text.

Invariant: everything random in an environment comes from the generator that `reset(seed=...)` seeds, and
everything that decides its future is in `snapshot()`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypedDict, TypeVar

import gymnasium
import gymnasium.error
from gymnasium.utils import seeding

from rollenv.errors import InvalidAction, RollenvError, SnapshotError
from rollenv.executor import DaemonThread
from rollenv.tasks import TaskSet

T = TypeVar("T")

Executor = Literal["inline", "thread"]
"""How an episode calls `reset` and `step`: `inline` (on the event loop: for environments of microseconds, no
deadline can interrupt them) or `thread` (a thread of the environment's own, abandoned when a deadline passes)."""


class Info(TypedDict, total=False):
    """The keys of `info` that rollenv itself reads. Environments add their own beside them."""

    task: str
    """Id of the task being played; in every `info`."""
    admissible_actions: list[str]
    """Every action that would be valid now, when the environment can list them (possibly patterns left out)."""
    valid_action: bool
    """After a step: whether the action was understood and possible. An invalid action changes nothing."""
    success: bool
    """Set by the step that ends the episode: whether the task was solved."""
    tools: list[dict[str, Any]]
    """JSON schemas of the tools, for environments that are driven by tool calls."""


class EpisodeOver(RollenvError, gymnasium.error.ResetNeeded):
    """A step before the first reset, or after the end."""


class TextSpace(gymnasium.Space[str]):
    """Every `str`, spaces and Unicode included (gymnasium's own `Text` allows a fixed alphabet only)."""

    _ALPHABET = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789[]-.,$é€"

    def __init__(self, max_length: int | None = None, seed: int | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)
        self.max_length = max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A random short text from the space's own generator."""
        size = int(self.np_random.integers(1, min(self.max_length or 40, 40) + 1))
        return "".join(self._ALPHABET[i] for i in self.np_random.integers(0, len(self._ALPHABET), size))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and (self.max_length is None or len(x) <= self.max_length)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def to_jsonable(self, sample_n: Any) -> list[str]:
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        return [str(item) for item in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and other.max_length == self.max_length

    def __hash__(self) -> int:
        return hash((TextSpace, self.max_length))

    def __repr__(self) -> str:
        return f"TextSpace(max_length={self.max_length})"


class TextEnv(gymnasium.Env[str, str]):
    """Base class of every environment.

    A subclass implements `reset` and `step` (calling `super().reset(seed=seed)` first, and drawing only from
    `self.np_random`), and may implement `_get_state`/`_set_state` to support snapshots.

    `reset(options={"task": id})` plays that task; without it the environment draws one from its task set with
    its own generator.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"]}  # noqa: RUF012 - gymnasium declares it so
    executor: Executor = "thread"
    """How `areset` and `astep` call this environment. A class that says it itself is believed; one that says nothing
    is measured when a run begins (`rollenv.rollout.placement`)."""
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    free_text: ClassVar[bool] = False
    """Whether any text at all is a valid action (an answer, a program), so that none is nonsense."""

    observation_space: gymnasium.Space[str] = TextSpace()
    action_space: gymnasium.Space[str] = TextSpace()

    render_mode: str | None = None
    _thread: DaemonThread | None = None

    @property
    def tasks(self) -> TaskSet:
        """The tasks this environment can be reset to."""
        raise AttributeError(f"{type(self).__name__} has no task set: define the property 'tasks'")

    # -- asynchronous calls --------------------------------------------------------------------------------

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """`reset` for asyncio callers, run where `executor` says."""
        return await self._call(functools.partial(self.reset, seed=seed, options=options))

    async def astep(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """`step` for asyncio callers, run where `executor` says."""
        return await self._call(functools.partial(self.step, action))  # type: ignore[arg-type]

    async def _call(self, function: Callable[[], T]) -> T:
        if self.executor == "inline":
            return function()
        if self._thread is None:
            self._thread = DaemonThread(name=f"env-{type(self).__name__}")
        return await asyncio.wrap_future(self._thread.submit(function))

    # -- snapshots -----------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The whole state as bytes, so that `restore` continues to the very same future.

        Raises:
            SnapshotError: the environment does not support snapshots.
        """
        raise SnapshotError(f"{type(self).__name__} does not support snapshots")

    def restore(self, snapshot: bytes) -> tuple[str, dict[str, Any]]:
        """Continues from `snapshot` (of this or an equal environment) and returns its observation and info.

        Raises:
            SnapshotError: the bytes are not a snapshot of an environment with the same data.
        """
        raise SnapshotError(f"{type(self).__name__} does not support snapshots")

    def reseed(self, seed: int) -> None:
        """Draws all that is still to be drawn from `seed`; the state stays as it is. Episodes that branch off from one
        snapshot have the same past, and futures of their own."""
        self._np_random, self._np_random_seed = seeding.np_random(seed)

    async def areseed(self, seed: int) -> None:
        """`reseed` for asyncio callers, run where `executor` says."""
        await self._call(functools.partial(self.reseed, seed))

    async def asnapshot(self) -> bytes:
        """`snapshot` for asyncio callers, run where `executor` says."""
        return await self._call(self.snapshot)

    async def arestore(self, snapshot: bytes, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """`restore`, and `reseed` when there is a seed, for asyncio callers, run where `executor` says."""
        return await self._call(functools.partial(restored, self, snapshot, seed))

    # -- helpers -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Frees what the environment holds; afterwards it must not be used. Safe to call twice."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def __getstate__(self) -> dict[str, Any]:
        # A thread stays where it is: a copy starts its own when it needs one.
        return {key: value for key, value in self.__dict__.items() if key != "_thread"}

    @staticmethod
    def check_text(action: Any) -> str:
        """`action` when it is text.

        Raises:
            InvalidAction: it is not a `str`.
        """
        if not isinstance(action, str):
            raise InvalidAction(f"an action must be text (str), not {type(action).__name__}: {action!r:.80}")
        return action

    @staticmethod
    def check_options(options: Any) -> dict[str, Any]:
        """The `options` of `reset` as a dict, empty when there are none.

        Raises:
            RollenvError: they are no `dict`.
        """
        if options is not None and not isinstance(options, dict):
            raise RollenvError(f"options must be a dict such as {{'task': id}}, not {options!r:.80}")
        return dict(options or {})


def restored(env: TextEnv, snapshot: bytes, seed: int | None) -> tuple[str, dict[str, Any]]:
    """Restores `env`, and reseeds it when there is a seed."""
    result = env.restore(snapshot)
    if seed is not None:
        env.reseed(seed)
    return result
