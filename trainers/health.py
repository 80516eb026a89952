"""The collapse detector: it watches a run's figures and says in a sentence when a policy is being destroyed.

Invariant: a function of the figures it was shown, in order; `state_dict` holds all that it remembers, so that a resumed
run is judged like an uninterrupted one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from rollenv.config.algo import HealthConfig

USUAL = ("entropy", "turn_tokens_mean")
"""Figures that are compared with what they were in the run's first steps."""
RECENT = ("grad_norm", "reward")
"""Figures that are compared with what they were lately."""


class CollapseDetector:
    """Looks for signs of a collapse: entropy that is gone, gradients that explode, reward that is lost, answers that
    grow or shrink beyond reason, a sampler that is far from the trainer, ratios that are all clipped.

    Args:
        config: which signs, and how many steps in a row one must be seen.
    """

    def __init__(self, config: HealthConfig) -> None:
        self._config = config
        self._first: dict[str, list[float]] = {name: [] for name in USUAL}
        self._last: dict[str, list[float]] = {name: [] for name in RECENT}
        self._best_reward: float | None = None
        self._streaks: dict[str, int] = {}

    def observe(self, figures: Mapping[str, Any]) -> str | None:
        """Takes the figures of a step; returns why the policy has collapsed, None as long as it has not.

        A step without an update says nothing. What has been reported counts anew.
        """
        if not figures.get("updates") and not figures.get("skipped_updates"):
            return None
        seen: dict[str, str] = {}
        for name, look in self._signs().items():
            reason = look(figures)
            if reason is not None:
                seen[name] = reason
        self._streaks = {name: self._streaks.get(name, 0) + 1 for name in seen}
        self._remember({name: figures[name] for name in figures if name != "grad_norm" or "gradient" not in seen})
        ripe = [name for name, steps in self._streaks.items() if steps >= self._config.patience]
        if not ripe:
            return None
        self._streaks = {}
        if "gradient" in ripe:
            self._last["grad_norm"] = []  # a spike is not usual; one that stays is, once it has been reported
        steps = f"{self._config.patience} steps in a row" if self._config.patience > 1 else "this step"
        return f"training collapses at step {figures['step']}: {' and '.join(seen[name] for name in ripe)} ({steps})"

    @property
    def signs(self) -> int:
        """How many signs the last step showed."""
        return len(self._streaks)

    def state_dict(self) -> dict[str, Any]:
        """All that it remembers, JSON-serialisable."""
        return {
            "first": self._first,
            "last": self._last,
            "best_reward": self._best_reward,
            "streaks": self._streaks,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state_dict`."""
        self._first = {name: list(values) for name, values in state["first"].items()}
        self._last = {name: list(values) for name, values in state["last"].items()}
        self._best_reward = state["best_reward"]
        self._streaks = dict(state["streaks"])

    # -- the signs -------------------------------------------------------------------------------------------------

    def _signs(self) -> dict[str, Callable[[Mapping[str, Any]], str | None]]:
        return {
            "gradient": self._gradient,
            "entropy": self._entropy,
            "reward": self._reward,
            "length": self._length,
            "mismatch": self._mismatch,
            "clipping": self._clipping,
        }

    def _gradient(self, figures: Mapping[str, Any]) -> str | None:
        if figures["skipped_updates"]:
            return "a gradient was not finite"
        limit, usual = self._config.grad_spike, self._recently("grad_norm", statistics.median)
        if limit is None or not usual or figures["grad_norm"] <= limit * usual:
            return None
        return f"the gradient norm is {figures['grad_norm']:.3g}, {limit:g} times the usual {usual:.3g} and more"

    def _entropy(self, figures: Mapping[str, Any]) -> str | None:
        share, usual = self._config.entropy_share, self._at_first("entropy")
        if share is None or not usual or figures["entropy"] >= share * usual:
            return None
        return f"entropy is {figures['entropy']:.3g} nats, below {share:g} of the {usual:.3g} it began with"

    def _reward(self, figures: Mapping[str, Any]) -> str | None:
        share, best = self._config.reward_share, self._best_reward
        now = self._recently("reward", statistics.fmean)
        if share is None or best is None or now is None or best <= 0 or now >= share * best:
            return None
        return f"mean reward is {now:.3g}, below {share:g} of its best {best:.3g}"

    def _length(self, figures: Mapping[str, Any]) -> str | None:
        factor, usual = self._config.length_factor, self._at_first("turn_tokens_mean")
        now = figures.get("turn_tokens_mean")
        if factor is None or not usual or now is None or usual / factor <= now <= usual * factor:
            return None
        more = "more" if now > usual else "fewer"
        return f"turns have {now:.3g} tokens, {factor:g} times {more} than the first steps' {usual:.3g}"

    def _mismatch(self, figures: Mapping[str, Any]) -> str | None:
        limit = self._config.mismatch_limit
        if limit is None or figures["mismatch_kl"] <= limit:
            return None
        return f"the KL divergence of sampler and trainer is {figures['mismatch_kl']:.3g}, above {limit:g}"

    def _clipping(self, figures: Mapping[str, Any]) -> str | None:
        limit = self._config.clip_limit
        if limit is None or figures["clipped_share"] <= limit:
            return None
        return f"{figures['clipped_share']:.0%} of the tokens are clipped, more than {limit:.0%}"

    # -- memory ----------------------------------------------------------------------------------------------------

    def _remember(self, figures: Mapping[str, Any]) -> None:
        for name, values in self._first.items():
            if name in figures and len(values) < self._config.window:
                values.append(float(figures[name]))
        for name, values in self._last.items():
            if name in figures:
                values.append(float(figures[name]))
                del values[: -self._config.window]
        now = self._recently("reward", statistics.fmean)
        if now is not None:
            self._best_reward = now if self._best_reward is None else max(now, self._best_reward)

    def _at_first(self, name: str) -> float | None:
        """Mean over the first steps, None before they are over."""
        values = self._first[name]
        return statistics.fmean(values) if len(values) == self._config.window else None

    def _recently(self, name: str, mean: Callable[[list[float]], float]) -> float | None:
        """`mean` over the last steps, None before there are enough."""
        values = self._last[name]
        return mean(values) if len(values) == self._config.window else None
