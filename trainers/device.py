"""Which device to compute on, and with how many threads."""

from __future__ import annotations

import os

import torch

from rollenv.errors import RollenvError


def choose_device(name: str, threads: int = 0) -> str:
    """`auto` is CUDA when there is one, else the CPU; sets torch's CPU threads (0: all this process may use).

    Raises:
        RollenvError: a device that is not here.
    """
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RollenvError(f"device='{name}' is not a device: say auto, cpu, cuda or cuda:1") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RollenvError(f"device='{name}' is not here: torch sees {torch.cuda.device_count()} CUDA devices")
    return name
