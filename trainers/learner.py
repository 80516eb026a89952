"""What a run trains, wherever that is: in this process, or on ranks of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from rollenv.config.algo import AlgoConfig
from rollenv.config.train import TrainConfig
from rollenv.errors import RollenvError
from rollenv.inference.chat import ChatFormat
from rollenv.rollout.groups import Group
from rollenv.seeding import derive_seed
from rollenv.trainers.checkpoint import Checkpoint
from rollenv.trainers.device import choose_device
from rollenv.trainers.lora import add_adapter, check_lora, load_adapter, save_adapter
from rollenv.trainers.minibatch import Advantages
from rollenv.trainers.policy import Policy, in_bf16, load_model, save_model
from rollenv.trainers.state import load_tensors, save_tensors, snapshot
from rollenv.trainers.step import PolicyTrainer
from rollenv.trainers.strategies.choose import make_strategy

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

    async def ensure_lives(self) -> None:
        """Raises LearnerDied when it is gone: others may have failed only because of that."""
        ...

    async def step(self, groups: Sequence[Group]) -> dict[str, float]:
        """One training step; its figures."""
        ...

    async def advantages(self) -> Advantages:
        """What the tokens of the last step trained with."""
        ...

    async def weights(self) -> Mapping[str, Tensor]:
        """The weights by name, for engines."""
        ...

    async def snapshot(self) -> None:
        """Copies its state as it is now, for `write`: training may go on meanwhile."""
        ...

    async def write(self, folder: Path) -> None:
        """Writes the snapshot into `folder`: `model/`, `trainer/`, `trainer.pt`, and `adapter/` where there is one."""
        ...

    async def offload(self) -> int:
        """Frees memory of devices that generate next, as `devices.offload` says; it comes back by itself. Returns how
        many bytes."""
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

    def trainer(self) -> PolicyTrainer:
        """The trainer with its policy, as it was when the checkpoint was written; among the ranks of this process's
        group, if it has one.

        Raises:
            RollenvError: the model or the checkpoint cannot be read, or the device is not here.
        """
        config, resume = self.config, self.resume
        device = choose_device(config.device, config.threads)
        lora = config.lora
        check_lora(lora)
        # With adapters the model is what it was in the beginning, and what a checkpoint keeps is the adapter.
        model, tokenizer = load_model(resume.model if resume and not lora.rank else self.model)
        adapter = None
        if lora.rank:
            adapter = add_adapter(model, lora, derive_seed(config.seed, "lora"), self.model)
            if resume is not None:
                load_adapter(model, resume.folder / "adapter")
        policy = Policy.of(model, tokenizer, device, config.optim.precision)
        policy.adapter = adapter
        temperature = config.sampling.temperature
        strategy = make_strategy(config, device)
        trainer = PolicyTrainer(
            policy, config.algo, config.optim, config.steps, temperature, config.critic, self.algos, strategy
        )
        if resume is not None:
            if trainer.needs_reference and adapter is None:
                trainer.set_reference(Policy.load(self.model, device, config.optim.precision))
            state = resume.tensors()
            trainer.load_numbers(state["trainer"])
            load_tensors(resume.folder / "trainer", trainer.room_for)
            torch.set_rng_state(state["torch_rng"])
        return trainer


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a trainer at some moment, in the host's memory; of a rank, what it is to write of it."""

    policy: Policy
    weights: Mapping[str, Tensor]
    adapter: Mapping[str, Tensor]
    tensors: Mapping[str, Tensor]
    numbers: Mapping[str, Any]
    torch_rng: Tensor

    @classmethod
    def of(cls, trainer: PolicyTrainer, rank: int = 0) -> Snapshot:
        """All ranks have to ask together; the first one keeps what is whole."""
        policy = trainer.policy
        whole = policy.state(rank == 0) if policy.sharded or rank == 0 else {}
        adapter = policy.adapter_state() if policy.adapter is not None else {}
        mine = (whole, adapter) if rank == 0 else ({}, {})
        kept = [snapshot(tensors) for tensors in (*mine, trainer.tensors())]
        return cls(policy, *kept, trainer.numbers(), torch.get_rng_state())

    def write(self, folder: Path, group: dist.ProcessGroup | None = None) -> None:
        """Writes it into a folder; every rank of `group` has to."""
        save_tensors(self.tensors, folder / "trainer", group)
        if not self.weights:
            return
        save_model(self.policy.model, self.weights, self.policy.tokenizer, folder / "model")
        if self.policy.adapter is not None:
            save_adapter(self.policy.adapter, self.adapter, folder / "adapter")
        torch.save({"trainer": dict(self.numbers), "torch_rng": self.torch_rng}, folder / "trainer.pt")


def weights_for_engines(trainer: PolicyTrainer, config: TrainConfig, rank: int = 0) -> Mapping[str, Tensor]:
    """Adapters, where the engines merge them, or all weights, in the engines' type; nothing for ranks but the first.
    All have to ask together where they have shards."""
    policy = trainer.policy
    if rank and not policy.sharded:
        return {}
    if policy.adapter is None or config.lora.sync == "merged":
        state = policy.state(rank == 0)
        return in_bf16(state, dict(policy.model.named_buffers())) if config.rollout.precision == "bf16" else state
    adapter = policy.adapter_state()
    return {} if rank else adapter


class LocalLearner:
    """Trains in this process.

    Args:
        beside: whether the event loop goes on while a step is computed. A loop that has nothing to do then is better
            left alone: a thread costs time.
    """

    def __init__(self, trainer: PolicyTrainer, config: TrainConfig, beside: bool) -> None:
        self.trainer, self._config, self._beside = trainer, config, beside
        self._snapshot: Snapshot | None = None

    @property
    def chat(self) -> ChatFormat:
        return self.trainer.policy.chat

    async def ensure_stays(self) -> None:
        pass

    async def ensure_lives(self) -> None:
        pass

    async def step(self, groups: Sequence[Group]) -> dict[str, float]:
        if self._beside:
            return await asyncio.to_thread(self.trainer.step, groups)
        return self.trainer.step(groups)

    async def advantages(self) -> Advantages:
        return self.trainer.advantages()

    async def weights(self) -> Mapping[str, Tensor]:
        return weights_for_engines(self.trainer, self._config)

    async def snapshot(self) -> None:
        self._snapshot = Snapshot.of(self.trainer)

    async def write(self, folder: Path) -> None:
        kept, self._snapshot = self._snapshot, None
        assert kept is not None
        await asyncio.to_thread(kept.write, folder)

    async def offload(self) -> int:
        return 0  # it takes turns with nobody

    async def slow_down(self, factor: float) -> float:
        self.trainer.lr_scale *= factor
        return self.trainer.lr_scale

    async def close(self) -> None:
        self.trainer.close()
