"""How to split devices between generating and training: simulated, beside the closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rollenv.config.simulate import DevicesConfig, ScenarioConfig
from rollenv.simulation.run import Outcome, simulate

POINTS = 12
"""Splits that are simulated at most."""


@dataclass(frozen=True, slots=True)
class Split:
    """So many of `total` devices train, and what that gives."""

    train: int
    total: int
    outcome: Outcome


def sweep(
    config: ScenarioConfig, devices: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Split]:
    """Simulates the splits of `devices` devices, those who share all of them by turns (train = 0) first.

    The bound on staleness decides what training beside generating is worth: with eta 0 the one waits for the other.
    """
    tried: list[Split] = []
    for train in candidates(devices):
        split = config.model_copy(update={"devices": DevicesConfig(total=devices, train=train)})
        tried.append(Split(train, devices, simulate(split)))
        progress(len(tried), len(candidates(devices)))
    return tried


def candidates(devices: int) -> list[int]:
    """Numbers of training devices to try: 0, and up to `POINTS` even steps from 1 to all but one.

    >>> candidates(4)
    [0, 1, 2, 3]
    """
    if devices <= 1:
        return [0]
    most = devices - 1
    points = min(POINTS, most)
    return [0, *sorted({1 + round(i * (most - 1) / max(1, points - 1)) for i in range(points)})]


def best(splits: list[Split]) -> Split:
    """The split with the shortest step."""
    return min(splits, key=lambda split: split.outcome.mean_step)
