"""Admission: how far rollouts may run ahead of training. Pure functions over counts.

Version v means that v training steps have been applied; step v trains on B groups. Invariant: a group admitted at
version s is trained at a version t with t - s <= ceil(eta), for any eta >= 0. A fractional eta lets floor(eta B) groups
run ahead; versions are whole, so with eta = 0.5 half of a batch is one version old and half is fresh.
"""

from __future__ import annotations

import math


def admissible(eta: float, version: int, batch: int, taken: int) -> int:
    """How many more groups may start now.

    floor((eta + version + 1) * batch) - taken, where `taken` counts the groups accepted so far, trained ones
    included, and those running (AReaL, arXiv 2505.24298, equation 3, in groups).

    Args:
        eta: bound on the staleness, in versions.
        version: versions of the weights made so far.
        batch: groups that one training step takes.
        taken: groups accepted or running, since the beginning.
    """
    # The tolerance keeps 0.1 + 0.2 style rounding from hiding a whole group.
    return max(0, math.floor((eta + version + 1) * batch + 1e-9) - taken)


def due(eta: float, version: int, admitted_at: int) -> bool:
    """Whether a group admitted at version `admitted_at` must be part of the batch of `version`, else it would be
    older than ceil(`eta`) when it trains."""
    return version + 1 - admitted_at > math.ceil(eta)
