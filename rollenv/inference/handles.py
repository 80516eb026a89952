"""Tensors of a GPU, in another process that has the same GPU, without a copy: by handles of their memory (CUDA IPC).

Invariant: what is opened is the sender's memory itself: to be read while the sender keeps the tensors as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

Handles: TypeAlias = list[tuple[str, tuple[Any, ...]]]
"""Name and what `rebuild_cuda_tensor` needs, of each tensor; picklable."""

_DEVICE = 6
"""Which of these is the number that the sender gives to the device."""


def gpu_of(device: torch.device | str) -> str:
    """What names a GPU in every process that has it; empty for a CPU."""
    device = torch.device(device)
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def handles_of(tensors: Mapping[str, Tensor]) -> Handles:
    """Handles of tensors on a GPU."""
    torch.cuda.synchronize()  # whoever opens them knows nothing of what is still being computed here
    return [(name, _handle(tensor)) for name, tensor in tensors.items()]


def _handle(tensor: Tensor) -> tuple[Any, ...]:
    _, parts = reduce_tensor(tensor.detach())  # type: ignore[no-untyped-call]
    return tuple(parts)


def opened(handles: Handles, device: torch.device) -> dict[str, Tensor]:
    """The tensors, as this process sees them.

    Args:
        device: the same GPU, by the number that it has here.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    return {name: _opened(list(parts), index) for name, parts in handles}


def _opened(parts: list[Any], index: int) -> Tensor:
    parts[_DEVICE] = index
    tensor: Tensor = rebuild_cuda_tensor(*parts)  # type: ignore[no-untyped-call]
    return tensor
