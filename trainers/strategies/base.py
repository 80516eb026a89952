"""What a strategy is: where the weights lie, and how micro-batches become gradients.

Invariant: under any strategy, and with any number of ranks, a step's losses, gradients and weights are those of one
process up to the order of sums, and all ranks are told the same figures, to the bit. In bf16 a strategy is like itself
with another number of ranks: `fsdp2` rounds more than the others, between layers, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from torch import Tensor

from rollenv.trainers.policy import Policy
from rollenv.trainers.ranks import Ranks

J = TypeVar("J", bound=Any)
R = TypeVar("R")


class Workers(Protocol):
    """Take jobs (micro-batches) through a policy, each rank its share of them."""

    @property
    def shares(self) -> int:
        """Jobs that are done at the same time, over all ranks: fewer leave some of them idle."""
        ...

    def map(self, jobs: Sequence[J], costs: Sequence[int], function: Callable[[Policy, J], R]) -> list[R]:
        """`function` of each job, in the order of the jobs. It has no gradient."""
        ...

    def backward(
        self, jobs: Sequence[J], costs: Sequence[int], loss: Callable[[Policy, J], tuple[Tensor, R]]
    ) -> list[R]:
        """Adds the gradients of all jobs' losses to the policy's; returns what else each of them returned."""
        ...

    def close(self) -> None:
        """Ends what it started."""
        ...


class Strategy(Protocol):
    """How the training of a policy is spread over ranks."""

    @property
    def ranks(self) -> Ranks:
        """This rank among the others."""
        ...

    def prepare(self, policy: Policy) -> None:
        """Lays the weights of a policy out, in place: after copies of it are made, before any optimizer is. A policy
        that has been prepared stays as it is."""
        ...

    def workers(self, policy: Policy) -> Workers:
        """What computes with a prepared policy."""
        ...
