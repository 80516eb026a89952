"""Ranks of one training job: processes with the same weights that share the micro-batches of every update.

Every rank gets the whole batch and makes the same micro-batches of it; each computes those that are dealt to it, and
what the others computed is gathered. So a step reads the same with one rank and with many, and ranks never need to
agree on anything but sums.

Invariant: after every call all ranks hold the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

R = TypeVar("R")

BUCKET_NUMEL = 16 * 2**20
"""Elements of gradients that are summed in one message."""


class Ranks(Protocol):
    """This rank among the others."""

    @property
    def rank(self) -> int:
        """The number of this one."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def gather(self, mine: Mapping[int, R], n: int) -> list[R]:
        """The results of jobs 0 to n - 1, of which this rank has some."""
        ...

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Replaces every gradient by the sum over all ranks; one that a rank has not counts as zero there, and one
        that no rank has stays away."""
        ...


class Alone:
    """The only rank."""

    rank, size = 0, 1

    def gather(self, mine: Mapping[int, R], n: int) -> list[R]:
        return [mine[i] for i in range(n)]

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        return None


class TorchRanks:
    """Ranks of a process group of `torch.distributed` (gloo on CPUs, NCCL on GPUs).

    Args:
        group: default: the world.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def gather(self, mine: Mapping[int, R], n: int) -> list[R]:
        everyone: list[Mapping[int, R] | None] = [None] * self.size
        dist.all_gather_object(everyone, dict(mine), group=self._group)
        results = {i: result for part in everyone if part is not None for i, result in part.items()}
        return [results[i] for i in range(n)]

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if not trained:
            return
        device = trained[0].device
        there_P = torch.tensor([parameter.grad is not None for parameter in trained], dtype=torch.int32, device=device)
        dist.all_reduce(there_P, dist.ReduceOp.MAX, group=self._group)
        summed = [parameter for parameter, there in zip(trained, there_P.tolist(), strict=True) if there]
        for parameter in summed:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in _buckets([parameter.grad for parameter in summed if parameter.grad is not None]):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            dist.all_reduce(flat, group=self._group)
            for gradient, total in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_(total.view_as(gradient))


def _buckets(gradients: Sequence[Tensor]) -> list[list[Tensor]]:
    buckets: list[list[Tensor]] = []
    room = 0
    for gradient in gradients:
        if gradient.numel() > room or buckets[-1][0].dtype != gradient.dtype:
            buckets.append([])
            room = BUCKET_NUMEL
        buckets[-1].append(gradient)
        room -= gradient.numel()
    return buckets
