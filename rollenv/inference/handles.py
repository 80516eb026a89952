"""Tensors of a GPU, in another process that has the same GPU, without a copy: by handles of their memory (CUDA IPC).

Invariant: what is opened is the sender's memory itself: to be read while the sender keeps the tensors as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

Handles: TypeAlias = tuple[str, list[tuple[str, tuple[Any, ...]]]]
"""A GPU's name; name and what `rebuild_cuda_tensor` needs, of each tensor. Picklable."""

_DEVICE = 6
"""Which of these is the number that the sender gives to the device."""


def gpu_of(device: torch.device | str) -> str:
    """What names a GPU in every process that has it; empty for a CPU."""
    device = torch.device(device)
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def handles_of(tensors: Mapping[str, Tensor]) -> Handles:
    """Handles of tensors on one GPU, in memory of this process's own: torch passes no handles on."""
    device = next(iter(tensors.values())).device
    torch.cuda.synchronize(device)  # whoever opens them knows nothing of what is still being computed here
    return gpu_of(device), [(name, _handle(tensor)) for name, tensor in tensors.items()]


def opened(handles: Handles) -> dict[str, Tensor]:
    """The tensors, as this process sees them.

    Raises:
        RuntimeError: it does not see their GPU.
    """
    gpu, parts = handles
    seen = [index for index in range(torch.cuda.device_count()) if gpu_of(f"cuda:{index}") == gpu]
    if not seen:
        raise RuntimeError(f"this process does not see the GPU {gpu}")
    return {name: _opened(list(each), seen[0]) for name, each in parts}


def _handle(tensor: Tensor) -> tuple[Any, ...]:
    _, parts = reduce_tensor(tensor.detach())  # type: ignore[no-untyped-call]
    return tuple(parts)


def _opened(parts: list[Any], index: int) -> Tensor:
    parts[_DEVICE] = index
    tensor: Tensor = rebuild_cuda_tensor(*parts)  # type: ignore[no-untyped-call]
    return tensor
