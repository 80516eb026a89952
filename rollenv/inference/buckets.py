"""Tensors on their way between processes: packed into a few large buffers, read where they arrive without a copy.

A buffer is a flat array of bytes, so that what carries it (Ray's object store, shared memory, a socket) needs to know
nothing of tensors or bf16. A manifest says where each tensor lies.

Invariant: `unpacked(*packed(tensors))` has the names, types, shapes and bits of `tensors`; those that are one in
memory, as tied weights are, travel once and are one again.
"""

from __future__ import annotations

import math
import mmap
import os
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BUCKET_BYTES = 64 * 2**20
ALIGNMENT = 64
"""Bytes: a tensor begins at a multiple, as views of any type need, and vector instructions like."""

Bytes: TypeAlias = NDArray[np.uint8]


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


Manifest: TypeAlias = tuple[Place, ...]


def layout(tensors: Mapping[str, Tensor], bucket_bytes: int = BUCKET_BYTES) -> tuple[Manifest, list[int]]:
    """Where each tensor will lie, and the bytes of each buffer. A tensor larger than a bucket has one to itself."""
    places: dict[str, Place] = {}
    sizes = [0]
    tensors = dict(tensors)  # all of them at a time: memory that is given back would be another tensor's
    for name, first in first_names(tensors).items():
        if name != first:
            places[name] = replace(places[first], name=name)
            continue
        tensor = tensors[name]
        start = -(-sizes[-1] // ALIGNMENT) * ALIGNMENT
        place = Place(name, tensor.dtype, tuple(tensor.shape), len(sizes) - 1, start)
        if start and start + place.nbytes > bucket_bytes:
            sizes.append(0)
            place = Place(name, tensor.dtype, tuple(tensor.shape), len(sizes) - 1, 0)
        places[name] = place
        sizes[-1] = place.start + place.nbytes
    return tuple(places.values()), sizes


def first_names(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """For each name the first one of the same tensor: tied weights, and only these, have one that is not their own.

    >>> import torch
    >>> embedding = torch.zeros(3, 2)
    >>> first_names({"embed": embedding, "norm": torch.zeros(2), "head": embedding.detach()})
    {'embed': 'embed', 'norm': 'norm', 'head': 'embed'}
    """
    first: dict[tuple[object, ...], str] = {}
    return {name: first.setdefault(_memory(name, tensor), name) for name, tensor in tensors.items()}


def _memory(name: str, tensor: Tensor) -> tuple[object, ...]:
    if not tensor.numel():
        return (name,)
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def packed(tensors: Mapping[str, Tensor], bucket_bytes: int = BUCKET_BYTES) -> tuple[Manifest, list[Bytes]]:
    """Copies tensors of any device into buffers."""
    manifest, sizes = layout(tensors, bucket_bytes)
    buffers = [np.empty(size, dtype=np.uint8) for size in sizes]
    fill(manifest, buffers, tensors)
    return manifest, buffers


def fill(manifest: Manifest, buffers: Sequence[Bytes | Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copies those of `tensors` that the manifest names to their places."""
    filled: set[tuple[int, int]] = set()
    for place, target in zip(manifest, unpacked(manifest, buffers).values(), strict=True):
        if place.nbytes and (place.bucket, place.start) not in filled:
            target.copy_(tensors[place.name])
            filled.add((place.bucket, place.start))


def unpacked(manifest: Manifest, buffers: Sequence[Bytes | Tensor]) -> dict[str, Tensor]:
    """The tensors, as views of the buffers (arrays, or flat tensors of bytes on any device): to be read, not written,
    when the buffers are somebody else's."""
    flat = [_flat(buffer) for buffer in buffers]
    return {place.name: _view(flat[place.bucket], place) for place in manifest}


def bucket_of(manifest: Manifest, bucket: int) -> Manifest:
    """The part of a manifest that is about one buffer, as a manifest of that buffer alone."""
    return tuple(replace(place, bucket=0) for place in manifest if place.bucket == bucket)


def _view(flat: Tensor, place: Place) -> Tensor:
    if not place.nbytes:  # nothing lies there, and torch cannot view nothing as another type
        return torch.empty(place.shape, dtype=place.dtype, device=flat.device)
    return flat[place.start : place.start + place.nbytes].view(place.dtype).view(place.shape)


def _flat(buffer: Bytes | Tensor) -> Tensor:
    if isinstance(buffer, Tensor):
        return buffer
    with warnings.catch_warnings():
        # torch knows no read-only tensors and warns of arrays that are. These are only copied from.
        warnings.filterwarnings("ignore", message=".*not writable")
        return torch.from_numpy(buffer)


# -- shared memory ---------------------------------------------------------------------------------------------------


class SharedBuffer:
    """Bytes that another process of this machine can map (`SharedReader`). They have no name on any disk: what is left
    of them goes with the last process that has them, however it ends. Linux only.

    Attributes:
        path: what the other process opens, while this one lives.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("rollenv-weights", os.MFD_CLOEXEC)
        self._array = np.empty(0, dtype=np.uint8)
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
        self._close = weakref.finalize(self, os.close, self._fd)

    def sized(self, size: int) -> Bytes:
        """The buffer, at least `size` bytes (but for 0); it grows, and is mapped anew, only when it has to."""
        if size > len(self._array):
            os.ftruncate(self._fd, size)
            self._array = np.frombuffer(mmap.mmap(self._fd, size, flags=_SHARED), dtype=np.uint8)
        return self._array

    def close(self) -> None:
        """Lets it go; who has mapped it may still read it. Forgetting the object does the same."""
        self._close()
        self._array = np.empty(0, dtype=np.uint8)


class SharedReader:
    """Reads the `SharedBuffer`s of other processes; maps each once for as long as it is used."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, Bytes]] = {}

    def read(self, buffers: Sequence[tuple[str, int]]) -> list[Bytes]:
        """The first so many bytes of each buffer, by path, to be read. What is not among them any more is let go.

        Raises:
            OSError: a buffer is gone.
        """
        before, self._known = self._known, {}
        for path, size in buffers:
            # A path may be that of another buffer by now: the number of a closed file is given to the next one.
            inode = os.stat(path).st_ino
            known, view = before.get(path, (0, _NOTHING))
            if known != inode or len(view) < size:
                view = _mapped(path, size) if size else _NOTHING  # nothing cannot be mapped
            self._known[path] = inode, view
        return [self._known[path][1] for path, _ in buffers]


def _mapped(path: str, size: int) -> Bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return np.frombuffer(mmap.mmap(fd, size, flags=_SHARED, prot=mmap.PROT_READ), dtype=np.uint8)
    finally:
        os.close(fd)


_NOTHING: Bytes = np.empty(0, dtype=np.uint8)
_SHARED = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
"""All pages at once: one by one, as they are touched, costs more than the copy itself."""
