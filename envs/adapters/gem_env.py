"""GEM's environments (the package `gem-llm`, arXiv 2510.01051): `gem.make(...)`, played as rollenv's own.

Invariant: GEM's environments draw from the process's global generators; here each has states of its own for them, which
are put in place for the length of a call, so that no environment disturbs another one, nor anything else.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from rollenv.envs.adapters.foreign import ForeignEnv, Seen, checked_range, plain, seed_of_task
from rollenv.errors import RollenvError, did_you_mean

_global_generators = threading.Lock()


class GemEnv(ForeignEnv):
    """One environment of GEM's registry.

    Args:
        env_id: `game:GuessTheNumber-v0-hard`, `rg:leg_counting`, ...
        args: arguments for `gem.make`.
        success: an episode whose last reward is at least this is solved (GEM's games and questions pay 1 for it).
        reward_range: lowest and highest reward of a step, where they are known.

    Any text is an action. The observation ends with the suffix that GEM keeps beside it (`info["suffix"]`);
    `info["inner"]` holds what else of GEM's info is plain data. A task `seed-N` begins as `env.reset(seed=N)` does.

    Raises:
        RollenvError: the package is not installed, or has no such environment, or cannot make it.
    """

    library = "gem"
    free_text = True

    def __init__(
        self,
        env_id: str | None = None,
        args: Mapping[str, Any] | None = None,
        success: float = 1.0,
        reward_range: Sequence[float] | None = None,
    ) -> None:
        if env_id is None:
            raise RollenvError("gem: which environment? Give env_id=NAME, such as game:GuessTheNumber-v0-hard")
        self._name, self._args, self._solved = env_id, dict(args or {}), float(success)
        self.reward_range = checked_range(self.library, reward_range)  # type: ignore[misc]
        self._states: tuple[Any, Any] | None = None
        self._open()
        super().__init__({"env": env_id, "args": plain(self._args), "success": self._solved, "gem": _version()})

    def _open(self) -> None:
        gem, registry = _gem()
        if self._name not in registry:
            raise RollenvError(f"gem: there is no environment '{self._name}'{did_you_mean(self._name, registry)}")
        with self._own_chance():
            try:
                self._inner = gem.make(self._name, **self._args)
            except Exception as error:  # whatever its constructor raises: data sets that are not there, wrong arguments
                said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                raise RollenvError(f"gem: cannot make '{self._name}' with {self._args} ({said})") from error

    def _begin(self, task: str, chance: int) -> Seen:
        with self._own_chance():
            observation, info = self._inner.reset(seed=seed_of_task(task)["seed"])
        self._reseed(chance)
        return self._saw(observation, info)

    def _act(self, action: str) -> Seen:
        with self._own_chance():
            observation, reward, terminated, truncated, info = self._inner.step(action)
        return self._saw(observation, info, float(reward), bool(terminated), bool(truncated))

    def _saw(
        self,
        observation: Any,
        info: Mapping[str, Any],
        reward: float = 0.0,
        terminated: bool = False,
        truncated: bool = False,
    ) -> Seen:
        if not isinstance(observation, str):
            raise RollenvError(
                f"gem: '{self._name}' shows a {type(observation).__name__}, not text: a text environment cannot play it"
            )
        suffix = info.get("suffix")
        text = f"{observation}\n{suffix}" if suffix and not (terminated or truncated) else observation
        inner = {key: value for key, value in info.items() if key != "suffix"}
        solved = reward >= self._solved
        return Seen(text, reward, terminated, truncated, success=solved, info={"inner": inner} if inner else {})

    def _reseed(self, seed: int) -> None:
        self._states = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def _own_chance(self) -> Iterator[None]:
        with _global_generators:
            others = random.getstate(), np.random.get_state()
            if self._states is not None:
                random.setstate(self._states[0])
                np.random.set_state(self._states[1])
            try:
                yield
            finally:
                self._states = random.getstate(), np.random.get_state()
                random.setstate(others[0])
                np.random.set_state(others[1])

    def close(self) -> None:
        """Forgets the environment inside; GEM's have nothing to close."""
        self._seen = None
        super().close()


def _gem() -> tuple[Any, Mapping[str, Any]]:
    try:
        import gem
        from gem.envs.registration import ENV_REGISTRY
    except ImportError as error:
        raise RollenvError(
            f"gem: the package is not installed ({error}); pip install 'rollenv[gem]' into an environment of its own"
        ) from error
    return gem, ENV_REGISTRY


def _version() -> str:
    from importlib.metadata import version

    return version("gem-llm")
