"""A learner on ranks: workers that each train their share of every batch, wherever they are."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from rollenv.cluster.handover import Giver, Handover
from rollenv.cluster.links import own_address
from rollenv.cluster.runtime import Runtime, WorkerDied
from rollenv.cluster.weights import Manifest, packed, unpacked
from rollenv.cluster.worker_group import WorkerGroup
from rollenv.inference.chat import ChatFormat
from rollenv.rollout.groups import Group
from rollenv.trainers.device import choose_device
from rollenv.trainers.learner import LearnerDied, Snapshot, TrainJob, weights_for_engines
from rollenv.trainers.minibatch import Advantages
from rollenv.trainers.plan import Plan, Planner, Shard, divided
from rollenv.trainers.step import PolicyTrainer

T = TypeVar("T")

ANSWER_SECONDS = 30.0
"""How long ranks may take to say that they are there, when one of them has raised something."""


class TrainerRank(Giver):
    """One rank, in a worker. The ranks meet in `join`, at the address that rank 0 names. `by_turns`: an engine has its
    device, too."""

    def __init__(self, job: TrainJob, rank: int, size: int, by_turns: bool = False) -> None:
        super().__init__()
        self._job, self._rank, self._size, self._by_turns = job, rank, size, by_turns
        self._trainer: PolicyTrainer | None = None
        self._snapshot: Snapshot | None = None
        self._writers: dist.ProcessGroup | None = None

    def address(self) -> str:
        """`HOST:PORT` of this worker's machine, free a moment ago."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as free:
            free.bind(("", 0))
            return f"{own_address()}:{free.getsockname()[1]}"

    def join(self, address: str) -> None:
        """Meets the other ranks and makes the trainer."""
        if self._size > 1 or self._job.config.strategy.kind == "fsdp2":
            on_gpu = choose_device(self._job.config.device, self._job.config.threads) != "cpu"
            # Figures and checkpoints go between hosts' memories, by gloo, whatever tensors do.
            backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
            dist.init_process_group(backend, init_method=f"tcp://{address}", rank=self._rank, world_size=self._size)
            self._writers = dist.new_group(backend="gloo")  # of their own: they write while the ranks train
        self._trainer = self._job.trainer()

    @property
    def trainer(self) -> PolicyTrainer:
        """Once it has joined."""
        assert self._trainer is not None
        return self._trainer

    def shares(self) -> int:
        """See `PolicyTrainer.shares`."""
        return self.trainer.shares

    def step(self, shard: Shard, plan: Plan) -> dict[str, float]:
        """See `PolicyTrainer.step_on`."""
        return self.trainer.step_on(plan, shard)

    def advantages(self) -> Advantages:
        """See `PolicyTrainer.advantages`."""
        return self.trainer.advantages()

    def weights(self) -> tuple[Manifest, list[Any]]:
        """The weights, packed; those of the first rank are enough."""
        return packed(self.present_weights())

    def present_weights(self) -> Mapping[str, Tensor]:
        return weights_for_engines(self.trainer, self._job.config, self._rank)

    def device(self) -> torch.device:
        return self.trainer.policy.device

    def snapshot(self) -> None:
        """See `Learner.snapshot`."""
        was_away = self.trainer.offloaded
        self._snapshot = Snapshot.of(self.trainer, self._rank)
        if was_away:
            self.offload()

    def offload(self) -> int:
        """See `Learner.offload`."""
        to = self._job.config.devices.offload
        if not self._by_turns:
            return 0
        freed = 0 if to == "none" else self.trainer.offload(to)
        if self.device().type == "cuda":
            torch.cuda.empty_cache()  # the engine's own process is another one
        return freed

    async def write(self, folder: Path) -> None:
        """See `Learner.write`. A coroutine: it runs beside what the rank computes."""
        kept, self._snapshot = self._snapshot, None
        assert kept is not None
        await asyncio.to_thread(kept.write, folder, self._writers)

    def slow_down(self, factor: float) -> float:
        """See `Learner.slow_down`."""
        self.trainer.lr_scale *= factor
        return self.trainer.lr_scale

    def close(self) -> None:
        """Leaves the others."""
        super().close()
        self.trainer.close()
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):  # the others may be gone
                dist.destroy_process_group()


class RankedLearner:
    """Trains on ranks. Made by `join`."""

    def __init__(
        self,
        group: WorkerGroup,
        runtime: Runtime,
        chat: ChatFormat,
        planner: Planner,
        shares: int,
        handover: Handover | None = None,
    ) -> None:
        self._group, self._runtime, self._chat = group, runtime, chat
        self._planner, self._shares, self._handover = planner, shares, handover

    @classmethod
    async def join(cls, group: WorkerGroup, runtime: Runtime, chat: ChatFormat, job: TrainJob) -> RankedLearner:
        """Lets the ranks (workers that are `TrainerRank`s) find each other."""
        await group.broadcast("join", await group.rank_zero("address"))
        planner = Planner(job.config.algo, job.config.optim, job.algos)
        gpu, way = await group.rank_zero("gpu"), job.config.devices.weights
        direct = way == "direct" or (way == "auto" and gpu)
        handover = Handover(group, gpu) if direct else None
        return cls(group, runtime, chat, planner, await group.rank_zero("shares"), handover)

    @property
    def chat(self) -> ChatFormat:
        return self._chat

    async def ensure_stays(self) -> None:
        leaving = await self._runtime.leaving()
        if names := [handle.name for handle in self._group.handles if handle.name in leaving]:
            raise LearnerDied(f"training rank '{names[0]}' is on a machine that leaves; --resume goes on elsewhere")

    async def step(self, groups: Sequence[Group]) -> dict[str, float]:
        common, shards = await asyncio.to_thread(self._divided, groups)
        figures: dict[str, float] = (await self._alive(self._group.scatter("step", shards, common)))[0]
        return figures

    def _divided(self, groups: Sequence[Group]) -> tuple[Any, list[Shard]]:
        """A reference to what all ranks need to know of a batch, and what only one of them does."""
        n = len(self._group)
        common, shards = divided(self._planner.plan(groups, self._shares, n), n)
        return self._runtime.put(common), shards

    async def advantages(self) -> Advantages:
        found: Advantages = await self._alive(self._group.rank_zero("advantages"))
        return found

    async def ensure_lives(self) -> None:
        await self._alive(self._group.broadcast("shares"))

    async def _alive(self, call: Awaitable[T]) -> T:
        """Awaits a call of ranks. One that died is the end of all: the others wait for it."""
        try:
            return await call
        except WorkerDied as error:
            raise _gone(error) from error
        except Exception as error:
            # Whoever was in a collective with one that died says so before its death is known.
            if (dead := await self._dead()) is not None:
                raise _gone(dead) from error
            raise

    async def _dead(self) -> WorkerDied | None:
        """What a call of a rank that is gone raises; None when all answer, or are too busy to."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._group.broadcast("shares")
        except WorkerDied as error:
            return error
        except Exception:
            return None
        return None

    async def weights(self) -> Mapping[str, Tensor]:
        if self._handover is not None:
            return self._handover.issue()
        return unpacked(*(await self._alive(self._group.broadcast("weights")))[0])

    async def snapshot(self) -> None:
        await self._alive(self._group.broadcast("snapshot"))

    async def write(self, folder: Path) -> None:
        await self._alive(self._group.broadcast("write", folder))

    async def offload(self) -> int:
        return sum(await self._alive(self._group.broadcast("offload")))

    async def slow_down(self, factor: float) -> float:
        scale: float = (await self._alive(self._group.broadcast("slow_down", factor)))[0]
        return scale

    async def close(self) -> None:
        await self._group.stop()


def _gone(error: WorkerDied) -> LearnerDied:
    return LearnerDied(f"a training rank is gone: {error}; --resume goes on from the last checkpoint")
