"""Weights on their way to workers: each version is written once, however many ask for it.

To workers of the same machine they go through memory that both map, to others through the runtime's references.
`rollenv.inference.buckets` packs them.

Invariant: a worker that reads shared memory reads one version: what it reads is not written to before it is done.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from rollenv.inference.buckets import Manifest, SharedBuffer, SharedReader, fill, layout, packed, unpacked

__all__ = ["Manifest", "Publisher", "Shared", "SharedReader", "packed", "this_machine", "unpacked"]

Shared: TypeAlias = list[tuple[str, int]]
"""Path and bytes of each shared buffer."""


def this_machine() -> str:
    """Equal in two processes that can map each other's shared buffers; empty where there are none."""
    if not hasattr(os, "memfd_create"):
        return ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.getuid()}"
    except OSError:
        return ""


class Publisher:
    """Puts each version of the weights where workers can reach it, once, however many of them ask at the same time.

    Args:
        put: what makes a reference of a buffer (`Runtime.put`).
    """

    def __init__(self, put: Callable[[Any], Any]) -> None:
        self._put = put
        self._lock = threading.Lock()
        self._version: int | None = None
        self._source: Mapping[str, Tensor] | None = None
        self._published: tuple[Manifest, list[Any]] = ((), [])
        self._issue: _Issue | None = None

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> tuple[Manifest, list[Any]]:
        """Manifest and references of the buffers. The same version and mapping as last time is not put again."""
        with self._lock:
            if self._version != version or self._source is not tensors:
                manifest, buffers = packed(tensors)
                self._published = manifest, [self._put(buffer) for buffer in buffers]
                self._version, self._source = version, tensors
            return self._published

    @contextlib.contextmanager
    def shared(self, version: int, tensors: Mapping[str, Tensor]) -> Iterator[tuple[Manifest, Shared]]:
        """Manifest and shared buffers, for workers of this machine (`SharedReader`); they hold these tensors as long as
        the block lasts. The same version and mapping as last time is not written again."""
        with self._lock:
            issue = self._issue
            if issue is None or issue.version != version or issue.source is not tensors:
                issue = self._issue = _written(version, tensors, issue)
            issue.readers += 1
        try:
            yield issue.manifest, issue.buffers
        finally:
            with self._lock:
                issue.readers -= 1


@dataclass(slots=True, eq=False)
class _Issue:
    """A version in shared memory, and how many read it."""

    version: int
    source: Mapping[str, Tensor]
    manifest: Manifest
    memory: Sequence[SharedBuffer]
    buffers: Shared
    readers: int = 0


def _written(version: int, tensors: Mapping[str, Tensor], before: _Issue | None) -> _Issue:
    """Writes a version, into the memory of the one before unless that is being read."""
    manifest, sizes = layout(tensors)
    memory = list(before.memory if before is not None and not before.readers else ())[: len(sizes)]
    memory += [SharedBuffer() for _ in sizes[len(memory) :]]
    fill(manifest, [buffer.sized(size) for buffer, size in zip(memory, sizes, strict=True)], tensors)
    buffers = [(buffer.path, size) for buffer, size in zip(memory, sizes, strict=True)]
    return _Issue(version, tensors, manifest, memory, buffers)
