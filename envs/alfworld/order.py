"""The order in which the original plays its games: shuffled once, played through, shuffled again, and so on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

UPSTREAM_SEED = 1234
"""What alfworld/alfworld's environments are seeded with."""


class UpstreamOrder:
    """Games in the order of TextWorld's gym environments (`textworld/gym/envs/textworld_batch.py`).

    Args:
        ids: the games.
        seed: of `numpy.random.RandomState`.
        drawn: so many games were played already.
    """

    def __init__(self, ids: Sequence[str], seed: int = UPSTREAM_SEED, drawn: int = 0) -> None:
        self.seed, self.drawn = seed, 0
        self._rng = np.random.RandomState(seed)
        self._ids = list(ids)
        self._rng.shuffle(self._ids)
        for _ in range(drawn):
            self.draw()

    def draw(self) -> str:
        """The next game."""
        position = self.drawn % len(self._ids)
        if self.drawn and position == 0:
            self._rng.shuffle(self._ids)
        self.drawn += 1
        return self._ids[position]
