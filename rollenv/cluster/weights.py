"""Weights on their way between processes: packed into a few large buffers, read where they arrive without a copy.

A buffer is a flat array of bytes, so that what carries it (Ray's object store, shared memory, a socket) needs to know
nothing of tensors or bf16. A manifest says where each tensor lies.

Invariant: `unpacked(*packed(tensors))` has the names, types, shapes and bits of `tensors`.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BUCKET_BYTES = 64 * 2**20
ALIGNMENT = 64
"""Bytes: a tensor begins at a multiple, as views of any type need, and vector instructions like."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: in which buffer, from which byte on."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    bucket: int
    start: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


Manifest = tuple[Place, ...]


def layout(tensors: Mapping[str, Tensor], bucket_bytes: int = BUCKET_BYTES) -> tuple[Manifest, list[int]]:
    """Where each tensor will lie, and the bytes of each buffer. A tensor larger than a bucket has one to itself."""
    places: list[Place] = []
    sizes = [0]
    for name, tensor in tensors.items():
        start = -(-sizes[-1] // ALIGNMENT) * ALIGNMENT
        place = Place(name, tensor.dtype, tuple(tensor.shape), len(sizes) - 1, start)
        if start and start + place.nbytes > bucket_bytes:
            sizes.append(0)
            place = Place(name, tensor.dtype, tuple(tensor.shape), len(sizes) - 1, 0)
        places.append(place)
        sizes[-1] = place.start + place.nbytes
    return tuple(places), sizes


def packed(tensors: Mapping[str, Tensor], bucket_bytes: int = BUCKET_BYTES) -> tuple[Manifest, list[NDArray[np.uint8]]]:
    """Copies tensors of any device into buffers."""
    manifest, sizes = layout(tensors, bucket_bytes)
    buffers = [np.empty(size, dtype=np.uint8) for size in sizes]
    targets = unpacked(manifest, buffers)
    for name, tensor in tensors.items():
        targets[name].copy_(tensor)
    return manifest, buffers


def unpacked(manifest: Manifest, buffers: Sequence[NDArray[np.uint8]]) -> dict[str, Tensor]:
    """The tensors, as views of the buffers: to be read, not written, when the buffers are somebody else's."""
    flat = [_bytes(buffer) for buffer in buffers]
    return {place.name: _view(flat[place.bucket], place) for place in manifest}


def _view(flat: Tensor, place: Place) -> Tensor:
    if not place.nbytes:  # nothing lies there, and torch cannot view nothing as another type
        return torch.empty(place.shape, dtype=place.dtype)
    return flat[place.start : place.start + place.nbytes].view(place.dtype).view(place.shape)


def _bytes(buffer: NDArray[np.uint8]) -> Tensor:
    with warnings.catch_warnings():
        # torch knows no read-only tensors and warns of arrays that are. These are only copied from.
        warnings.filterwarnings("ignore", message=".*not writable")
        return torch.from_numpy(buffer)


class Publisher:
    """Puts each version of the weights where workers can reach it, once, however many of them ask.

    Args:
        put: what makes a reference of a buffer (`Runtime.put`).
    """

    def __init__(self, put: Callable[[Any], Any]) -> None:
        self._put = put
        self._lock = threading.Lock()
        self._version: int | None = None
        self._source: Mapping[str, Tensor] | None = None
        self._published: tuple[Manifest, list[Any]] = ((), [])

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> tuple[Manifest, list[Any]]:
        """Manifest and references of the buffers. The same version and mapping as last time is not put again."""
        with self._lock:
            if self._version != version or self._source is not tensors:
                manifest, buffers = packed(tensors)
                self._published = manifest, [self._put(buffer) for buffer in buffers]
                self._version, self._source = version, tensors
            return self._published
