"""Every rank has a part of every weight, gradient and optimizer state: FSDP2 (`torch.distributed.fsdp.fully_shard`).

A layer's weights are put together from all ranks when it computes and taken apart when it has. That is a collective
call, so all ranks have to take the same number of micro-batches through the model: who has fewer computes blanks.

Invariant: outside of a forward or backward pass a parameter is its shard (a `DTensor`).
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from rollenv.trainers.parallel import own_jobs
from rollenv.trainers.policy import Policy
from rollenv.trainers.ranks import Ranks
from rollenv.trainers.strategies.recompute import recompute_activations


class Job(Protocol):
    """A micro-batch, of one of the ranks."""

    @property
    def rank(self) -> int:
        """Whose it is."""
        ...

    def blank(self) -> Job:
        """A small one that goes the same way through the model and whose loss is 0."""
        ...


J = TypeVar("J", bound=Job)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Sharded:
    """Weights in shards over the ranks of a mesh.

    Attributes:
        mesh: one-dimensional, of all ranks.
        recompute: whether activations are computed again in the backward pass rather than kept.
        reshard: whether a layer's weights are taken apart after its forward pass, and put together once more for its
            backward pass; else they stay together in between: less traffic, more memory.
        reduce: type that gradients are summed in.
        offload: whether shards, gradients and optimizer state are in the host's memory, from where each layer's
            weights are fetched.
    """

    ranks: Ranks
    mesh: DeviceMesh
    recompute: bool = False
    reshard: bool = True
    reduce: torch.dtype = torch.float32
    offload: bool = False

    def prepare(self, policy: Policy) -> None:
        if policy.root is not None:
            return
        if self.recompute:
            recompute_activations(policy)
        pinned = self.mesh.device_type != "cpu"
        offload = CPUOffloadPolicy(pin_memory=pinned) if self.offload else OffloadPolicy()
        options: dict[str, Any] = {"mesh": self.mesh, "offload_policy": offload}
        mixed = MixedPrecisionPolicy()
        if policy.precision == "bf16":
            mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=self.reduce)
        for layer in policy.layers():
            fully_shard(layer, reshard_after_forward=self.reshard, mp_policy=mixed, **options)
        if policy.value_head is not None:  # a single row: its arithmetic is fp32 in any case
            fully_shard(policy.value_head, **options)
        root = policy.root = _Root(policy)
        fully_shard(root, reshard_after_forward=False, mp_policy=mixed, **options)
        for module in _sharded_modules(root):
            module.set_gradient_divide_factor(1.0)  # the losses are parts of a sum, not means
            module.set_force_sum_reduction_for_comms(True)

    def workers(self, policy: Policy) -> ShardedWorkers:
        return ShardedWorkers(policy, self.ranks)


class _Root(nn.Module):
    """All of a policy under one `forward`, inside of which its parts may be called in any order: embeddings and head,
    which may be tied, belong to it."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.model, self.value_head = policy.model, policy.value_head

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()


class ShardedWorkers:
    """Take micro-batches through a sharded policy, in step with the other ranks.

    Args:
        policy: prepared by `Sharded`.
    """

    def __init__(self, policy: Policy, ranks: Ranks) -> None:
        assert policy.root is not None
        self._policy, self._root, self._ranks = policy, policy.root, ranks

    @property
    def shares(self) -> int:
        return self._ranks.size

    def map(self, jobs: Sequence[J], costs: Sequence[int], function: Callable[[Policy, J], R]) -> list[R]:
        results: dict[int, R] = {}
        with torch.no_grad():
            for i, job in self._mine(jobs):
                result = self._root(lambda job=job: function(self._policy, job))
                if i is not None:
                    results[i] = result
        for module in _sharded_modules(self._root):
            module.reshard()
        return self._ranks.gather(results, len(jobs))

    def backward(
        self, jobs: Sequence[J], costs: Sequence[int], loss: Callable[[Policy, J], tuple[Tensor, R]]
    ) -> list[R]:
        results: dict[int, R] = {}
        for i, job in self._mine(jobs):
            value, result = self._root(lambda job=job: loss(self._policy, job))
            value.backward()
            if i is not None:
                results[i] = result
        return self._ranks.gather(results, len(jobs))

    def _mine(self, jobs: Sequence[J]) -> list[tuple[int | None, J]]:
        """The jobs of this rank by number, and blanks (None) until there are as many as any rank has."""
        mine: list[tuple[int | None, Any]] = [(i, jobs[i]) for i in own_jobs(jobs, self._ranks)]
        counts = collections.Counter(job.rank if self._ranks.size > 1 else 0 for job in jobs)
        missing = max(counts.values(), default=0) - len(mine)
        return mine + [(None, jobs[0].blank())] * missing if missing else mine

    def close(self) -> None:
        """Nothing to end."""


def _sharded_modules(root: nn.Module) -> list[FSDPModule]:
    return [module for module in root.modules() if isinstance(module, FSDPModule)]
