"""Ranks for tests: processes that form a gloo group of `torch.distributed`."""

from __future__ import annotations

import multiprocessing
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp-recompute": {"recompute": True},
    "fsdp2": {},
    "fsdp2-together": {"reshard": False, "recompute": True},
    "fsdp2-offload": {"offload": True},
}


def in_ranks(size: int, function: Callable[[], Any]) -> list[Any]:
    """What `function` (picklable) returns in each of `size` ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as out:
        processes = [context.Process(target=_rank, args=(i, size, port, function, Path(out))) for i in range(size)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(1500)
            if process.is_alive():
                process.kill()
        assert [process.exitcode for process in processes] == [0] * size
        return [torch.load(Path(out) / f"{rank}.pt", weights_only=False) for rank in range(size)]


def _rank(rank: int, size: int, port: int, function: Callable[[], Any], out: Path) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    torch.save(function(), out / f"{rank}.pt")
    dist.destroy_process_group()


def strategy(name: str) -> Any:
    """Of the rank that this process is."""
    from torch.distributed.device_mesh import init_device_mesh

    from rollenv.trainers.ranks import TorchRanks
    from rollenv.trainers.strategies.replicated import Replicated
    from rollenv.trainers.strategies.sharded import Sharded

    ranks = TorchRanks()
    if name.startswith("ddp"):
        return Replicated(ranks, **STRATEGIES[name])
    return Sharded(ranks, init_device_mesh("cpu", (ranks.size,)), **STRATEGIES[name])


def apart_from_packing(figures: dict[str, float]) -> dict[str, float]:
    """Figures of a step but for what depends on how many micro-batches it is cut into."""
    return {name: value for name, value in figures.items() if name != "padding_share"}
