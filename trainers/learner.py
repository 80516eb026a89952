"""What a run trains, wherever that is: in this process, or on ranks of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from rollenv.cluster.runtime import Runtime, WorkerDied
from rollenv.cluster.weights import Manifest, packed, unpacked
from rollenv.cluster.worker_group import WorkerGroup
from rollenv.config.train import AlgoConfig, TrainConfig
from rollenv.errors import RollenvError
from rollenv.inference.chat import ChatFormat
from rollenv.rollout.groups import Group
from rollenv.trainers.checkpoint import Checkpoint
from rollenv.trainers.device import choose_device
from rollenv.trainers.parallel import ALONE
from rollenv.trainers.policy import Policy, load_model
from rollenv.trainers.ranks import Ranks, TorchRanks
from rollenv.trainers.step import PolicyTrainer

T = TypeVar("T")


class LearnerDied(RollenvError):
    """What had been learned since the last checkpoint is lost; from there a run can go on."""


class Learner(Protocol):
    """A policy and its trainer. Any call may raise `LearnerDied` where it lives elsewhere."""

    @property
    def chat(self) -> ChatFormat:
        """How the policy is talked to."""
        ...

    async def ensure_stays(self) -> None:
        """Raises LearnerDied when it is still here and will soon be gone: time to save it."""
        ...

    async def step(self, groups: Sequence[Group]) -> dict[str, float]:
        """One training step; its figures."""
        ...

    async def weights(self) -> Mapping[str, Tensor]:
        """The weights by name, for engines."""
        ...

    async def save(self, folder: Path) -> None:
        """Writes `model/` and `trainer.pt` into `folder`."""
        ...

    async def slow_down(self, factor: float) -> float:
        """Multiplies the learning rate from now on; returns what it then is of the scheduled one."""
        ...

    async def close(self) -> None:
        """Frees everything."""
        ...


@dataclass(frozen=True, slots=True)
class TrainJob:
    """What to train; picklable.

    Attributes:
        model: the folder or hub name that the run began with.
        resume: the checkpoint to continue from.
        algos: algorithms by environment, where they have one of their own.
    """

    config: TrainConfig
    model: str
    resume: Checkpoint | None = None
    algos: Mapping[str, AlgoConfig] = field(default_factory=dict)

    def trainer(self, ranks: Ranks = ALONE) -> PolicyTrainer:
        """The trainer with its policy, as it was when the checkpoint was written.

        Raises:
            RollenvError: the model or the checkpoint cannot be read, or the device is not here.
        """
        config, resume = self.config, self.resume
        device = choose_device(config.device, config.threads)
        model, tokenizer = load_model(resume.model if resume else self.model)
        policy = Policy.of(model, tokenizer, device, config.optim.precision)
        temperature = config.sampling.temperature
        trainer = PolicyTrainer(
            policy, config.algo, config.optim, config.steps, temperature, config.critic, self.algos, ranks
        )
        if resume is not None:
            if trainer.needs_reference:
                trainer.set_reference(Policy.load(self.model, device, config.optim.precision))
            tensors = resume.tensors()
            trainer.load_state_dict(tensors["trainer"])
            torch.set_rng_state(tensors["torch_rng"])
        return trainer


def save_trainer(trainer: PolicyTrainer, folder: Path) -> None:
    """Writes `model/` (a `transformers` folder) and `trainer.pt` (optimizer and generators)."""
    trainer.policy.save(folder / "model")
    torch.save({"trainer": trainer.state_dict(), "torch_rng": torch.get_rng_state()}, folder / "trainer.pt")


class LocalLearner:
    """Trains in this process.

    Args:
        beside: whether the event loop goes on while a step is computed. A loop that has nothing to do then is better
            left alone: a thread costs time.
    """

    def __init__(self, trainer: PolicyTrainer, beside: bool) -> None:
        self.trainer, self._beside = trainer, beside

    @property
    def chat(self) -> ChatFormat:
        return self.trainer.policy.chat

    async def ensure_stays(self) -> None:
        pass

    async def step(self, groups: Sequence[Group]) -> dict[str, float]:
        if self._beside:
            return await asyncio.to_thread(self.trainer.step, groups)
        return self.trainer.step(groups)

    async def weights(self) -> Mapping[str, Tensor]:
        return self.trainer.policy.state()

    async def save(self, folder: Path) -> None:
        save_trainer(self.trainer, folder)

    async def slow_down(self, factor: float) -> float:
        self.trainer.lr_scale *= factor
        return self.trainer.lr_scale

    async def close(self) -> None:
        self.trainer.close()


# -- ranks elsewhere -----------------------------------------------------------------------------------------------


class TrainerRank:
    """One rank, in a worker. The ranks meet in `join`, at the address that rank 0 names."""

    def __init__(self, job: TrainJob, rank: int, size: int) -> None:
        self._job, self._rank, self._size = job, rank, size
        self._trainer: PolicyTrainer | None = None

    def address(self) -> str:
        """`HOST:PORT` of this worker's machine, free a moment ago."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as free:
            free.bind(("", 0))
            return f"{_own_address()}:{free.getsockname()[1]}"

    def join(self, address: str) -> None:
        """Meets the other ranks and makes the trainer."""
        if self._size > 1:
            backend = "nccl" if choose_device(self._job.config.device) != "cpu" else "gloo"
            dist.init_process_group(backend, init_method=f"tcp://{address}", rank=self._rank, world_size=self._size)
        self._trainer = self._job.trainer(TorchRanks() if self._size > 1 else ALONE)

    @property
    def trainer(self) -> PolicyTrainer:
        """Once it has joined."""
        assert self._trainer is not None
        return self._trainer

    def step(self, groups: Sequence[Group]) -> dict[str, float]:
        """See `Learner.step`."""
        return self.trainer.step(groups)

    def weights(self) -> tuple[Manifest, list[Any]]:
        """The weights, packed."""
        return packed(self.trainer.policy.state())

    def save(self, folder: Path) -> None:
        """See `Learner.save`."""
        save_trainer(self.trainer, folder)

    def slow_down(self, factor: float) -> float:
        """See `Learner.slow_down`."""
        self.trainer.lr_scale *= factor
        return self.trainer.lr_scale

    def close(self) -> None:
        """Leaves the others."""
        self.trainer.close()
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):  # the others may be gone
                dist.destroy_process_group()


class RankedLearner:
    """Trains on ranks. Made by `join`."""

    def __init__(self, group: WorkerGroup, runtime: Runtime, chat: ChatFormat) -> None:
        self._group, self._runtime, self._chat = group, runtime, chat

    @classmethod
    async def join(cls, group: WorkerGroup, runtime: Runtime, chat: ChatFormat) -> RankedLearner:
        """Lets the ranks (workers that are `TrainerRank`s) find each other."""
        await group.broadcast("join", await group.rank_zero("address"))
        return cls(group, runtime, chat)

    @property
    def chat(self) -> ChatFormat:
        return self._chat

    async def ensure_stays(self) -> None:
        leaving = await self._runtime.leaving()
        if names := [handle.name for handle in self._group.handles if handle.name in leaving]:
            raise LearnerDied(f"training rank '{names[0]}' is on a machine that leaves; --resume goes on elsewhere")

    async def step(self, groups: Sequence[Group]) -> dict[str, float]:
        batch = await asyncio.to_thread(self._runtime.put, list(groups))
        figures: dict[str, float] = (await _alive(self._group.broadcast("step", batch)))[0]
        return figures

    async def weights(self) -> Mapping[str, Tensor]:
        return unpacked(*await _alive(self._group.rank_zero("weights")))

    async def save(self, folder: Path) -> None:
        await _alive(self._group.rank_zero("save", folder))

    async def slow_down(self, factor: float) -> float:
        scale: float = (await _alive(self._group.broadcast("slow_down", factor)))[0]
        return scale

    async def close(self) -> None:
        await self._group.stop()


async def _alive(call: Awaitable[T]) -> T:
    """Awaits a call of ranks. One that died is the end of all: the others wait for it."""
    try:
        return await call
    except WorkerDied as error:
        raise LearnerDied(f"a training rank is gone: {error}; --resume goes on from the last checkpoint") from error


def _own_address() -> str:
    """The address by which other machines reach this one; a datagram socket that sends nothing finds it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1: never anybody's
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
