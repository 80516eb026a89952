"""Every rank has all weights: one process (`single`), or several whose gradients are summed (`ddp`)."""

from __future__ import annotations

from dataclasses import dataclass

from rollenv.trainers.parallel import ALONE, GradientWorkers
from rollenv.trainers.policy import Policy
from rollenv.trainers.ranks import Ranks
from rollenv.trainers.strategies.recompute import recompute_activations


@dataclass(frozen=True, slots=True)
class Replicated:
    """All weights everywhere. Gradients are summed once per update, in buckets, whatever the number of micro-batches:
    `DistributedDataParallel` would hook into the backward pass of each, and knows no two threads in one rank.

    Attributes:
        recompute: whether activations are computed again in the backward pass rather than kept.
    """

    ranks: Ranks = ALONE
    recompute: bool = False

    def prepare(self, policy: Policy) -> None:
        if self.recompute:
            recompute_activations(policy)

    def workers(self, policy: Policy) -> GradientWorkers:
        return GradientWorkers(policy, ranks=self.ranks)


SINGLE = Replicated()
