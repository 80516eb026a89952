"""What the checks share: fresh instances of the environment, and the episodes they are compared with."""

from __future__ import annotations

import functools
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import gymnasium

from rollenv.conformance.player import Event, Player, Policy, fault, global_generators
from rollenv.conformance.report import CheckReport
from rollenv.core import TextEnv
from rollenv.errors import RollenvError
from rollenv.registration import make, spec


@dataclass(frozen=True, slots=True)
class Episode:
    """A recorded episode: `events[0]` answers `reset(seed)` and `events[i + 1]` answers `actions[i]`."""

    seed: int
    actions: tuple[str, ...]
    events: tuple[Event, ...]

    @property
    def done(self) -> bool:
        return self.events[-1].done


@dataclass(frozen=True, slots=True)
class Unpickle:
    """A factory of copies of one environment."""

    pickled: bytes

    def __call__(self) -> TextEnv:
        env: TextEnv = pickle.loads(self.pickled)
        return env


class Bench:
    """Opens instances and keeps the recorded episodes. `check` is the name of the check that is being made."""

    def __init__(
        self,
        env: TextEnv | str | Callable[[], TextEnv],
        *,
        episodes: int,
        steps: int,
        seed: int,
        policy: Policy | None,
    ) -> None:
        self.name, self.factory = _factory(env)
        self.n_episodes, self.n_steps, self.seed, self.policy = episodes, steps, seed, policy
        self.episodes: list[Episode] = []
        self.report = CheckReport(self.name)
        self.check = "instances"
        self._created = False

    @contextmanager
    def open(self) -> Iterator[TextEnv]:
        """A fresh instance, closed afterwards."""
        env = self.create()
        try:
            yield env
        finally:
            self.close(env)

    @contextmanager
    def player(self) -> Iterator[Player]:
        """A player of a fresh instance."""
        with self.open() as env:
            yield Player(env, self.check)

    def create(self) -> TextEnv:
        """A fresh instance, which the caller closes."""
        before = global_generators()
        try:
            env = self.factory()
        except Exception as error:
            raise self.fault(f"creating it raised {type(error).__name__}: {error}") from error
        if not isinstance(env, TextEnv):
            raise self.fault(f"the factory returned {type(env).__name__}, not a rollenv.TextEnv")
        if self._created and global_generators() != before:  # imports for the first one may do what they like
            raise self.fault("creating it used a global generator", "Draw from `self.np_random` only.")
        self._created = True
        return env

    def close(self, env: TextEnv) -> None:
        """Closes an instance, which may not fail."""
        try:
            env.close()
        except Exception as error:
            raise self.fault(f"close raised {type(error).__name__}: {error}", "It must not fail.") from error

    def generator(self, *path: object) -> random.Random:
        """A private generator that depends on the seed, the check and `path` only."""
        return random.Random("/".join(map(str, (self.seed, self.check, *path))))

    def points(self, episode: Episode, count: int) -> list[int]:
        """Up to `count` numbers of steps after which the episode still went on; 0 (after reset) is the first."""
        last = len(episode.actions) - 1 if episode.done else len(episode.actions)
        return sorted({round(i * last / max(1, count - 1)) for i in range(count)}) if last > 0 else [0]

    def fault(self, what: str, advice: str = "") -> Exception:
        """The error for a fault outside any episode."""
        return fault(self.name, self.check, what, advice)

    def skip(self, part: str, reason: str) -> None:
        """Notes that a part of the check could not be made."""
        self.report.skipped[f"{self.check}: {part}"] = reason


def replay(player: Player, episode: Episode, why: str, advice: str, steps: int | None = None) -> Sequence[Event]:
    """Plays the first `steps` steps of a recorded episode (all when None), which must give the recorded answers."""
    player.reset(episode.seed)
    player.play(episode.actions[:steps])
    expected = episode.events if steps is None else episode.events[: steps + 1]
    player.expect(player.events, expected, why, advice)
    return player.events


def _factory(env: TextEnv | str | Callable[[], TextEnv]) -> tuple[str, Callable[[], TextEnv]]:
    if isinstance(env, str):
        env_spec = spec(env)
        return env_spec.id, functools.partial(make, env_spec)
    if isinstance(env, TextEnv):
        name = type(env).__name__
        try:
            return name, Unpickle(pickle.dumps(env))
        except Exception as error:
            raise fault(
                name,
                "instances",
                f"it cannot be pickled: {type(error).__name__}: {error}",
                "Leave what cannot be pickled out in __getstate__ and make it anew when it is needed.",
            ) from error
    if isinstance(env, gymnasium.Env):
        raise RollenvError(f"check_env checks a rollenv.TextEnv, not {type(env).__name__}: pass env.unwrapped")
    if callable(env):
        return getattr(env, "__qualname__", type(env).__name__), env
    raise RollenvError(f"check_env takes an environment, an id or a function that makes one, not {type(env).__name__}")
