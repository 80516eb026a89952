"""Intervals for success rates, and what several samples of a task say."""

from __future__ import annotations

import math


def wilson(successes: int, trials: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson's score interval for a proportion (E. B. Wilson, 1927); z is the normal quantile, 1.96 for 95%.

    >>> [round(x, 4) for x in wilson(85, 100)]
    [0.7672, 0.9069]
    """
    if trials == 0:
        return 0.0, 1.0
    p = successes / trials
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """The chance that at least one of `k` samples of a task succeeds, estimated without bias from `samples` of which
    `successes` did (Chen et al. 2021, arXiv 2107.03374, equation 1).

    Raises:
        ValueError: fewer than `k` samples.

    >>> pass_at_k(4, 1, 1), pass_at_k(4, 1, 4)
    (0.25, 1.0)
    """
    if samples < k:
        raise ValueError(f"pass@{k} needs at least {k} samples of each task, not {samples}")
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)


def pass_hat_k(samples: int, successes: int, k: int) -> float:
    """The chance that all of `k` samples of a task succeed, estimated without bias (Yao et al. 2024, arXiv 2406.12045,
    section 2, "pass^k").

    Raises:
        ValueError: fewer than `k` samples.

    >>> pass_hat_k(4, 2, 1), pass_hat_k(4, 3, 2)
    (0.5, 0.5)
    """
    if samples < k:
        raise ValueError(f"pass^{k} needs at least {k} samples of each task, not {samples}")
    return math.comb(successes, k) / math.comb(samples, k)


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided p-value of the exact McNemar test: how likely it is that tasks which only one of two agents solves are
    shared out at least as unevenly, if each had even chances (Q. McNemar, 1947; the binomial form).

    >>> mcnemar(1, 8)
    0.0390625
    >>> mcnemar(0, 0)
    1.0
    """
    n, fewer = only_a + only_b, min(only_a, only_b)
    tail = sum(math.comb(n, i) for i in range(fewer + 1))
    return float(min(1.0, 2 * tail / 2**n))
