"""Closed forms: what a batch costs in lock-step and apart, and how long a step can take at most.

Sources: ROLL Flash (arXiv 2510.11345) for the bounds and the best split. K counts slots: places in which one episode at
a time is played. `alpha` is the asynchronous ratio, rollenv's eta.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Seconds_NT = npt.NDArray[np.float64]


def lock_step_seconds(seconds_NT: Seconds_NT) -> float:
    """N episodes that take each of T turns together: the sum over turns of the slowest."""
    return float(seconds_NT.max(axis=0).sum())


def independent_seconds(seconds_NT: Seconds_NT) -> float:
    """N episodes, each at its own pace and all at once: the longest sum over turns."""
    return float(seconds_NT.sum(axis=1).max())


def sample_seconds_bound(mean: float, longest: float, slots: int, samples: int, alpha: float) -> float:
    """Most seconds per sample: mu / K + L / ((alpha + 1) N).

    Args:
        mean: mu, mean seconds of a sample in a slot.
        longest: L, seconds of the longest.
        slots: K.
        samples: N, samples of one training step.
        alpha: asynchronous ratio.
    """
    return mean / slots + longest / ((alpha + 1) * samples)


def step_seconds_bound(
    mean: float, longest: float, slots: int, samples: int, alpha: float, train: float, epochs: int = 1
) -> float:
    """Most seconds per training step at the best split: N / K (mu + E mu_train) + L / (alpha + 1).

    Args:
        train: mu_train, seconds that a sample costs the trainer in one epoch on what one slot is of a device.
        epochs: E. The others are those of `sample_seconds_bound`.
    """
    return samples / slots * (mean + epochs * train) + longest / (alpha + 1)


def best_share(
    mean: float, longest: float, slots: int, samples: int, alpha: float, train: float, epochs: int = 1
) -> float:
    """beta*, the share of devices to train on: E N mu_train / (N mu + K L / (alpha + 1) + E N mu_train)."""
    training = epochs * samples * train
    whole = samples * mean + slots * longest / (alpha + 1) + training
    return training / whole if whole > 0 else 0.0
