"""From settings to a strategy. What cannot be is refused before anything starts (`check_strategy`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from rollenv.config.train import TrainConfig
from rollenv.errors import RollenvError
from rollenv.trainers.ranks import Alone, TorchRanks
from rollenv.trainers.strategies.replicated import Replicated

if TYPE_CHECKING:
    from rollenv.trainers.strategies.base import Strategy


def check_strategy(config: TrainConfig, ranks: int) -> None:
    """Checks the strategy against the number of training ranks.

    Raises:
        RollenvError: `single` with several ranks.
    """
    if config.strategy.kind == "single" and ranks > 1:
        raise RollenvError(
            f"strategy=single trains in one process, and devices.policy or devices.ranks ask for {ranks} ranks: "
            "say strategy=ddp or strategy=fsdp2"
        )


def make_strategy(config: TrainConfig, device: str) -> Strategy:
    """The strategy of this rank; the ranks have met (`torch.distributed`), or there is only this one.

    Raises:
        RollenvError: weights are to be offloaded from a device that is the host itself.
    """
    settings, met = config.strategy, dist.is_initialized()
    if settings.kind != "fsdp2":
        return Replicated(TorchRanks() if met else Alone(), settings.recompute)
    kind = torch.device(device).type
    if settings.cpu_offload and kind == "cpu":
        raise RollenvError(
            "strategy.cpu_offload=true keeps weights in the host's memory, and this rank computes on the CPU: "
            "there is nothing to offload, leave it away"
        )
    from torch.distributed.device_mesh import init_device_mesh

    from rollenv.trainers.strategies.sharded import Sharded  # takes a while to import

    return Sharded(
        TorchRanks(),
        init_device_mesh(kind, (dist.get_world_size(),)),
        settings.recompute,
        settings.reshard,
        torch.bfloat16 if settings.reduce == "bf16" else torch.float32,
        settings.cpu_offload,
    )
