"""Seeds that depend on names, not on the order in which things happen."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2**63) from a path such as `(run_seed, "episode", group, sample)`: equal on every machine."""
    digest = hashlib.blake2b("\x1f".join(f"{type(p).__name__}:{p}" for p in parts).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little") >> 1


class TaskOrder:
    """An endless, reproducible order over tasks: each epoch is a permutation of its own, drawn from the seed.

    A position in it is one integer, so that a checkpoint needs nothing else.

    >>> order = TaskOrder(["a", "b", "c"], seed=0)
    >>> sorted(order[i] for i in range(3))
    ['a', 'b', 'c']
    """

    def __init__(self, ids: Sequence[str], seed: int) -> None:
        self._ids = list(ids)
        self._seed = seed
        self._epoch = -1
        self._order: list[str] = []

    def __getitem__(self, index: int) -> str:
        epoch, position = divmod(index, len(self._ids))
        if epoch != self._epoch:
            self._order = list(self._ids)
            random.Random(derive_seed(self._seed, "epoch", epoch)).shuffle(self._order)
            self._epoch = epoch
        return self._order[position]
