"""Gradients by several threads: each takes some of a batch's micro-batches through the model, forward and backward.

Invariant: the gradients are sums over the micro-batches in an order that the dealing decides, not the timing, so that
the same batch gives the same bits every time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from rollenv.inference.cores import one_core_threads, worth_sharing
from rollenv.trainers.policy import Policy
from rollenv.trainers.ranks import Alone, Ranks

J = TypeVar("J")
R = TypeVar("R")

MOST_WORKERS = 8
ALONE = Alone()


class GradientWorkers:
    """Threads with a replica of a policy each: the same weights, gradients of their own.

    Args:
        policy: its weights are shared, so that an optimizer's step in place reaches every replica.
        workers: how many; None decides by model and machine (one on a GPU, or for a big model).
        ranks: other processes that do the same at the same time: of the jobs, each has those whose `rank` is its own.
    """

    def __init__(self, policy: Policy, workers: int | None = None, ranks: Ranks = ALONE) -> None:
        hidden = int(policy.model.config.get_text_config().hidden_size)
        self.n = worth_sharing(policy.device, hidden, MOST_WORKERS) if workers is None else workers
        self._policy, self._ranks = policy, ranks
        self._replicas = [policy, *(_replica(policy) for _ in range(self.n - 1))]
        self._threads = one_core_threads(self.n, "rollenv-gradient") if self.n > 1 else []

    @property
    def shares(self) -> int:
        """Jobs that are done at the same time, over all ranks: fewer leave some of them idle."""
        return self.n * self._ranks.size

    def map(self, jobs: Sequence[J], costs: Sequence[int], function: Callable[[Policy, J], R]) -> list[R]:
        """`function` of each job, with the replica of the worker that it fell to; results in the order of the jobs."""
        mine = own_jobs(jobs, self._ranks)
        results = self._map([jobs[i] for i in mine], [costs[i] for i in mine], function)
        return self._ranks.gather(dict(zip(mine, results, strict=True)), len(jobs))

    def _map(self, jobs: Sequence[J], costs: Sequence[int], function: Callable[[Policy, J], R]) -> list[R]:
        """The jobs of this rank."""
        if self.n == 1 or len(jobs) <= 1:
            return [function(self._policy, job) for job in jobs]
        shares = deal(costs, self.n)
        results: dict[int, R] = {}

        def work(worker: int) -> None:
            for i in shares[worker]:
                results[i] = function(self._replicas[worker], jobs[i])

        futures = [thread.submit(lambda w=w: work(w)) for w, thread in enumerate(self._threads)]  # type: ignore[misc]
        for future in futures:
            future.exception()  # all have ended before an error of one is raised
        for future in futures:
            future.result()
        return [results[i] for i in range(len(jobs))]

    def backward(
        self, jobs: Sequence[J], costs: Sequence[int], loss: Callable[[Policy, J], tuple[Tensor, R]]
    ) -> list[R]:
        """Adds the gradients of all jobs' losses to the policy's.

        Args:
            costs: of each job, for an even share (tokens).
            loss: the loss of a job under a replica, and what else is to be returned.
        """

        def one(policy: Policy, job: J) -> R:
            value, result = loss(policy, job)
            value.backward()  # type: ignore[no-untyped-call]
            return result

        results = self.map(jobs, costs, one)
        for replica in self._replicas[1:]:
            _move_gradients(replica, self._policy)
        self._ranks.sum_gradients(self._policy.parameters())
        return results

    def close(self) -> None:
        """Ends the threads."""
        for thread in self._threads:
            thread.stop()


def _replica(policy: Policy) -> Policy:
    replica = replace(policy, model=copy.deepcopy(policy.model), value_head=copy.deepcopy(policy.value_head))
    for own, shared in zip(replica.parameters(), policy.parameters(), strict=True):
        own.data = shared.data
        own.grad = None
    return replica


def _move_gradients(source: Policy, target: Policy) -> None:
    for own, shared in zip(source.parameters(), target.parameters(), strict=True):
        if own.grad is not None:
            shared.grad = own.grad if shared.grad is None else shared.grad.add_(own.grad)
            own.grad = None


def own_jobs(jobs: Sequence[Any], ranks: Ranks) -> list[int]:
    """The numbers of the jobs that are this rank's: all, where it is the only one."""
    return [i for i, job in enumerate(jobs) if ranks.size == 1 or job.rank == ranks.rank]


def deal(costs: Sequence[int], n: int) -> list[list[int]]:
    """Indices of jobs for each of `n` workers: the dearest first, to whom has least."""
    shares: list[list[int]] = [[] for _ in range(n)]
    loads = [0] * n
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        least = loads.index(min(loads))
        shares[least].append(i)
        loads[least] += costs[i]
    return [sorted(share) for share in shares]
