"""Admission: how far rollouts may run ahead of training. Pure functions over counts.

Version v means that v training steps have been applied; step v trains on B groups. Invariant: a group admitted at
version s is trained at a version t with t - s <= ceil(eta), for any eta >= 0. The bound on how many start is not enough
for that: when newer groups overtake older ones, the older must be waited for in time (`overdue`). A fractional eta lets
floor(eta B) groups run ahead; versions are whole, so with eta = 0.5 half of a batch is one version old and half fresh.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


def admissible(eta: float, version: int, batch: int, taken: int, extra: int = 0) -> int:
    """How many more groups may start now.

    floor((eta + version + 1) * batch) + extra - taken, where `taken` counts the groups accepted so far, trained ones
    included, and those running (AReaL, arXiv 2505.24298, equation 3, in groups).

    Args:
        eta: bound on the staleness, in versions.
        version: versions of the weights made so far.
        batch: groups that one training step takes.
        taken: groups accepted or running, since the beginning.
        extra: groups begun beyond the bound, of which so many are cancelled when the batch is full.
    """
    # The tolerance keeps 0.1 + 0.2 style rounding from hiding a whole group.
    return max(0, math.floor((eta + version + 1) * batch + 1e-9) + extra - taken)


def last_version(eta: float, admitted_at: int) -> int:
    """The last version whose batch may hold a group admitted at version `admitted_at`: then it is ceil(`eta`) old."""
    return admitted_at + math.ceil(eta)


def overdue(deadlines: Iterable[int], version: int, batch: int) -> int:
    """How many of some groups cannot all train in time.

    Groups train `batch` at a time, at `version` + 1, + 2 and so on; one with deadline d by version d at the latest.
    By Hall's theorem it is the largest excess, over all d, of those with a deadline up to d over the places up to d.
    """
    ordered = sorted(deadlines)
    return max([0, *(n - batch * max(0, d - version) for n, d in enumerate(ordered, 1))])
