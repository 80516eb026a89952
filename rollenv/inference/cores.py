"""Threads that compute on one core each, for models so small that one matrix product cannot use two.

Several such threads side by side, each with a part of the batch, use the machine where torch's own threads would mostly
wait for each other.
"""

from __future__ import annotations

import torch

from rollenv.executor import DaemonThread

SMALL_HIDDEN = 512
"""Up to this width sharing a batch between cores is faster than sharing each product between them."""


def worth_sharing(device: torch.device, hidden: int, most: int) -> int:
    """How many one-core threads pay for a model of width `hidden`: as many as torch may use, `most` at most, or 1."""
    if device.type != "cpu" or hidden > SMALL_HIDDEN:
        return 1
    return max(1, min(torch.get_num_threads(), most))


def one_core_threads(n: int, name: str) -> list[DaemonThread]:
    """`n` threads for which torch uses one core each; a single one keeps what torch may use."""
    cores = torch.get_num_threads()
    threads = [DaemonThread(f"{name}-{i}") for i in range(n)]
    if n > 1:
        for thread in threads:
            thread.submit(_use_one_core).result()
        torch.set_num_threads(cores)  # the calls above have also set what threads born later start with
    return threads


def _use_one_core() -> None:
    """Makes torch use one core for what the calling thread asks of it."""
    torch.get_num_threads()  # torch sets a thread up when it first asks, which would undo the next line later on
    torch.set_num_threads(1)
