"""Any environment with Gymnasium's API whose actions can be named, played by text.

Invariant: a task `seed-N` begins as `env.reset(seed=N)` does, and every further draw of the environment's own generator
comes from the episode's seed: samples of one task begin alike and go on by chances of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np

from rollenv.envs.adapters.foreign import ForeignEnv, Seen, called, checked_range, plain, seed_of_task
from rollenv.envs.adapters.spaces import actions_of, described, uncoloured
from rollenv.errors import RollenvError, did_you_mean

NAMES: dict[str, tuple[str, ...]] = {
    "Acrobot": ("push left", "wait", "push right"),
    "Blackjack": ("stick", "hit"),
    "CartPole": ("push left", "push right"),
    "CliffWalking": ("up", "right", "down", "left"),
    "CliffWalkingSlippery": ("up", "right", "down", "left"),
    "FrozenLake": ("left", "down", "right", "up"),
    "FrozenLake8x8": ("left", "down", "right", "up"),
    "LunarLander": ("wait", "fire left engine", "fire main engine", "fire right engine"),
    "MountainCar": ("push left", "wait", "push right"),
    "Taxi": ("south", "north", "east", "west", "pick up", "drop off"),
}
"""Words for the actions of Gymnasium's own environments, from its documentation."""

Make = Callable[..., "gymnasium.Env[Any, Any]"]


class GymnasiumEnv(ForeignEnv):
    """One environment of Gymnasium's registry, or of a function that makes one.

    Args:
        env_id: `CliffWalking-v1`, `module:Name-v0` (imports that module first), or from Python a function.
        args: arguments for `gymnasium.make`, or for the function.
        actions: words for the actions of a Discrete space; default: those of Gymnasium's documentation, else what
            the environment's `get_action_meanings()` says, else numbers.
        observe: `ansi` (what its render mode `ansi` draws) or `array` (what `step` returns, written out);
            `auto`: the former where there is one.
        describe: `module:function` or a function that makes the text of `(observation, info)`.
        success: when an episode counts as solved: a number is the return that it must reach, `terminated` means that
            it ends by itself. Default: what the last `info` says under `success` or `is_success`, else the reward
            threshold that the environment was registered with, else a return above 0.
        reward_range: lowest and highest reward of a step, where they are known.

    `info["inner"]` holds what of the environment's own info is plain data.

    Raises:
        RollenvError: there is no such environment, its package is missing, or its actions or observations cannot
            be said in words.
    """

    library = "gymnasium"

    def __init__(
        self,
        env_id: str | Make | None = None,
        args: Mapping[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        observe: Literal["auto", "ansi", "array"] = "auto",
        describe: str | Callable[[Any, Mapping[str, Any]], str] | None = None,
        success: float | Literal["terminated"] | None = None,
        reward_range: Sequence[float] | None = None,
    ) -> None:
        if env_id is None:
            raise RollenvError("gymnasium: which environment? Give env_id=NAME, such as CliffWalking-v1")
        self._made_by, self._args, self._names = env_id, dict(args or {}), actions
        self._name = env_id if isinstance(env_id, str) else getattr(env_id, "__qualname__", type(env_id).__name__)
        self._observe = _checked_observe(observe)
        self._describe = called("describe", describe) if isinstance(describe, str) else describe
        self._solved = _checked_success(success)
        self.reward_range = checked_range(self.library, reward_range)  # type: ignore[misc]
        self._return, self._mask = 0.0, None
        self._open()
        self.free_text = self._actions.free  # type: ignore[misc]
        identity = {"env": self._name, "args": plain(self._args), "actions": plain(actions), "observe": self._observe}
        super().__init__(identity | {"success": success, "gymnasium": gymnasium.__version__})

    def _open(self) -> None:
        self._inner = self._made()
        try:
            unwrapped = self._inner.unwrapped
            self._ansi = self._observe != "array" and self._inner.render_mode == "ansi"
            if self._observe == "ansi" and not self._ansi:
                raise RollenvError(f"gymnasium: '{self._name}' has no render mode ansi: leave out observe=ansi")
            names = self._names or _names_of(self._inner, unwrapped)
            self._actions = actions_of(self._inner.action_space, names, f"gymnasium: '{self._name}'")
        except BaseException:
            self._inner.close()
            raise

    def _made(self) -> gymnasium.Env[Any, Any]:
        if not isinstance(self._made_by, str):
            return self._made_by(**self._args)
        if self._made_by.startswith("rollenv/"):
            raise RollenvError(
                f"gymnasium: '{self._made_by}' is rollenv's own: play it as --env "
                f"{self._made_by.removeprefix('rollenv/').rpartition('-')[0].lower()}"
            )
        try:
            args = dict(self._args)
            if self._observe != "array" and "render_mode" not in args and "ansi" in _modes(self._made_by):
                args["render_mode"] = "ansi"
            return gymnasium.make(self._made_by, **args)
        except gymnasium.error.UnregisteredEnv as error:
            near = did_you_mean(self._made_by, gymnasium.registry)
            raise RollenvError(f"gymnasium: there is no environment '{self._made_by}'{near}") from error
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            said = str(error).partition("\n")[0].rstrip(".")
            raise RollenvError(f"gymnasium: cannot make '{self._made_by}' with {self._args}: {said}") from error

    # -- episodes ------------------------------------------------------------------------------------------

    def _begin(self, task: str, chance: int) -> Seen:
        observation, info = self._inner.reset(seed=seed_of_task(task)["seed"])
        self._reseed(chance)
        self._return = 0.0
        return self._saw(observation, info)

    def _reseed(self, seed: int) -> None:
        self._inner.unwrapped.np_random = np.random.Generator(np.random.PCG64(seed))

    def _act(self, action: str) -> Seen:
        assert self._seen is not None
        taken = self._actions.read(action, self._mask)
        if taken is None:
            return Seen(self._seen.observation, valid=False)
        observation, reward, terminated, truncated, info = self._inner.step(taken)
        self._return += float(reward)
        return self._saw(observation, info, float(reward), bool(terminated), bool(truncated))

    def _saw(
        self,
        observation: Any,
        info: Mapping[str, Any],
        reward: float = 0.0,
        terminated: bool = False,
        truncated: bool = False,
    ) -> Seen:
        self._mask = info.get("action_mask")
        return Seen(
            self._text(observation, info),
            reward,
            terminated,
            truncated,
            success=self._is_solved(info, terminated),
            actions=self._actions.listed(self._mask),
            info={"inner": info} if info else {},
        )

    def _text(self, observation: Any, info: Mapping[str, Any]) -> str:
        if self._describe is not None:
            return str(self._describe(observation, info))
        if self._ansi:
            return uncoloured(str(self._inner.render())).strip("\n")
        return described(observation)

    def _is_solved(self, info: Mapping[str, Any], terminated: bool) -> bool:
        if self._solved == "terminated":
            return terminated
        if self._solved is not None:
            return self._return >= self._solved
        for key in ("success", "is_success"):
            if key in info:
                return bool(info[key])
        threshold = self._inner.spec.reward_threshold if self._inner.spec is not None else None
        return self._return > 0 if threshold is None else self._return >= threshold

    def close(self) -> None:
        """Closes the environment inside."""
        if getattr(self, "_inner", None) is not None:
            self._inner.close()
            self._seen = None
        super().close()


def _modes(env_id: str) -> Sequence[str]:
    """The render modes of a registered environment, which its class says."""
    spec = gymnasium.spec(env_id)
    maker = (
        gymnasium.envs.registration.load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else None
    )
    return getattr(maker or spec.entry_point, "metadata", {}).get("render_modes", ())


def _names_of(env: gymnasium.Env[Any, Any], unwrapped: Any) -> Sequence[str] | None:
    if env.spec is not None and env.spec.namespace is None and env.spec.name in NAMES:
        return NAMES[env.spec.name]
    if hasattr(unwrapped, "get_action_meanings"):
        return [str(word).lower() for word in unwrapped.get_action_meanings()]
    return None


def _checked_observe(observe: str) -> str:
    choices = ("auto", "ansi", "array")
    if observe not in choices:
        raise RollenvError(
            f"gymnasium: observe must be one of {', '.join(choices)}, not {observe!r}"
            f"{did_you_mean(str(observe), choices)}"
        )
    return observe


def _checked_success(success: Any) -> Any:
    if success is None or success == "terminated":
        return success
    if isinstance(success, bool) or not isinstance(success, int | float):
        raise RollenvError(f"gymnasium: success must be a return to reach or 'terminated', not {success!r}")
    return float(success)
