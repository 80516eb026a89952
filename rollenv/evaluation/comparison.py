"""Two evaluations of the same tasks, and whether their difference is more than luck.

The tasks are what is drawn anew: both agents met the same ones, so each task's difference counts, not the two rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rollenv.errors import RollenvError
from rollenv.evaluation.results import Outcome, Results
from rollenv.evaluation.statistics import mcnemar

RESAMPLES = 10_000
LEVEL = 0.05
"""How often two equal agents may be called different."""


@dataclass(frozen=True, slots=True)
class Difference:
    """B less A in one figure: `ci95` from resampled tasks."""

    a: float
    b: float
    ci95: tuple[float, float]

    @property
    def difference(self) -> float:
        return self.b - self.a

    @property
    def clear(self) -> bool:
        """Zero lies outside of the interval."""
        return self.ci95[0] > 0 or self.ci95[1] < 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two evaluations say of each other.

    Attributes:
        tasks: how many both played.
        only_a, only_b: tasks that one solved more often than the other.
        p_value: exact McNemar for one sample of each task, else a sign-flip test of the tasks' differences.
    """

    tasks: int
    success: Difference
    reward: Difference
    turns: Difference
    only_a: int
    only_b: int
    p_value: float

    @property
    def winner(self) -> Literal["A", "B"] | None:
        """Who is better. A difference is called one when both the interval and the test say so."""
        if not (self.success.clear and self.p_value < LEVEL):
            return None
        return "B" if self.success.difference > 0 else "A"

    @property
    def verdict(self) -> str:
        """In words."""
        found, (low, high) = self.success, self.success.ci95
        points = f"95% CI {100 * low:+.1f} to {100 * high:+.1f}"
        if self.winner is not None:
            size = abs(100 * found.difference)
            return f"{self.winner} is better by {size:.1f} points of success (B - A: {points}; p = {self.p_value:.2g})"
        return (
            f"no difference found over {self.tasks} tasks (B - A: {100 * found.difference:+.1f} points of success, "
            f"{points}; p = {self.p_value:.2g})"
        )


def compare(a: Results, b: Results) -> Comparison:
    """Compares two evaluations task by task; the same two always give the same figures.

    Raises:
        RollenvError: they are not of the same panel.
    """
    ours, theirs = a.summary["tasks_sha256"], b.summary["tasks_sha256"]
    if ours != theirs or a.outcomes.keys() != b.outcomes.keys():
        raise RollenvError(
            f"'{a.folder}' and '{b.folder}' are of different panels (tasks {ours[:12]}, {len(a.outcomes)} of them, and "
            f"{theirs[:12]}, {len(b.outcomes)}): evaluate both with the same environment, split and --episodes"
        )
    pairs = [(a.outcomes[task], b.outcomes[task]) for task in a.outcomes]
    means = np.array([[_means(x), _means(y)] for x, y in pairs])
    success, reward, turns = _differences(means)
    gains = means[:, 1, 0] - means[:, 0, 0]
    only_a, only_b = int((gains < 0).sum()), int((gains > 0).sum())
    single = all(len(x) == len(y) == 1 for x, y in pairs)
    p_value = mcnemar(only_a, only_b) if single else sign_flip(gains)
    return Comparison(len(pairs), success, reward, turns, only_a, only_b, p_value)


def _means(outcomes: Sequence[Outcome]) -> tuple[float, float, float]:
    """Success, reward and turns of a task's episodes."""
    n = len(outcomes)
    return sum(o.success for o in outcomes) / n, sum(o.reward for o in outcomes) / n, sum(o.turns for o in outcomes) / n


def _differences(means: NDArray[np.float64]) -> list[Difference]:
    """Each figure's, with its bootstrap percentile interval (Efron, 1979); `means` has shape [tasks, 2, figures]."""
    tasks, gains = len(means), means[:, 1] - means[:, 0]
    draw, each = np.random.default_rng(0), np.full(len(means), 1 / tasks)
    # In parts: the counts of all resamples would take gigabytes on a large panel.
    parts = (draw.multinomial(tasks, each, size=RESAMPLES // 100) @ gains / tasks for _ in range(100))
    low, high = np.quantile(np.concatenate(list(parts)), [0.025, 0.975], axis=0)
    rows = np.stack([*means.mean(0), low, high]).T.tolist()
    return [Difference(a, b, (least, most)) for a, b, least, most in rows]


def sign_flip(gains: NDArray[np.float64]) -> float:
    """Two-sided p-value: how often the mean of the tasks' differences would be as far from zero if each had come out
    the other way round as easily (Fisher's randomisation test, 1935; RESAMPLES draws)."""
    draw = np.random.default_rng(0)
    seen, extreme = abs(gains.sum()), 0
    for _ in range(100):  # in parts, as above
        signs = draw.integers(0, 2, size=(RESAMPLES // 100, len(gains)), dtype=np.int8) * 2 - 1
        extreme += int((np.abs(signs @ gains) >= seen - 1e-12).sum())
    return (extreme + 1) / (RESAMPLES + 1)
